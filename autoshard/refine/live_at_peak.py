"""The buffers that a scheduled program holds at its peak, as far as its text tells.

Counted in the program's own schedule; what a loop holds beside what it carries counts at the loop.
"""

from __future__ import annotations

import re
from collections import defaultdict

from autoshard.hlo.text import HloModule, Instruction

_ALIASES = frozenset({"bitcast", "get-tuple-element", "tuple", "while", "opt-barrier"})
_ALIASES_FIRST = frozenset({"dynamic-update-slice", "optimization-barrier", "add-dependency"})
_NO_BUFFER = frozenset({"parameter", "constant"})
_ON_CHIP = re.compile(r"S\(1\)")


def live_at_peak(module: HloModule) -> tuple[tuple[str, int], ...]:
    """Names of ops, and the bytes that each holds in device memory at the peak; arguments not.

    Args:
        module: Scheduled, as compilers give it out.
    """
    instructions = list(module.computations.get(module.entry, {}).values())
    owners: dict[str, frozenset[str]] = {}
    last: dict[str, int] = {}
    for time, instruction in enumerate(instructions):
        read = frozenset[str]().union(
            *(owners.get(name, frozenset()) for name in _held(instruction))
        )
        for name in instruction.operands:
            for owner in owners.get(name, ()):
                last[owner] = time
        is_alias = instruction.opcode in _ALIASES | _ALIASES_FIRST
        owners[instruction.name] = read if is_alias else frozenset({instruction.name})
        if instruction.is_root:
            last.update(dict.fromkeys(owners[instruction.name], len(instructions)))
    steps: dict[int, int] = defaultdict(int)
    own: dict[str, tuple[int, int, int]] = {}
    for time, instruction in enumerate(instructions):
        num_bytes = _own_bytes(instruction)
        if num_bytes:
            stop = last.get(instruction.name, time) + 1
            own[instruction.name] = (time, stop, num_bytes)
            steps[time] += num_bytes
            steps[stop] -= num_bytes
    peak = _peak_time(steps)
    by_name = module.computations.get(module.entry, {})
    return tuple(
        (by_name[name].string("op_name"), num_bytes)
        for name, (start, stop, num_bytes) in own.items()
        if start <= peak < stop
    )


def _held(instruction: Instruction) -> tuple[str, ...]:
    return (
        instruction.operands[:1] if instruction.opcode in _ALIASES_FIRST else instruction.operands
    )


def _own_bytes(instruction: Instruction) -> int:
    """Bytes of a new buffer in device memory."""
    if instruction.opcode in _ALIASES | _ALIASES_FIRST | _NO_BUFFER:
        return 0
    if instruction.opcode.endswith(("-start", "-done", "-update")):
        return 0
    return 0 if _ON_CHIP.search(instruction.type_text) else instruction.laid_out_bytes


def _peak_time(steps: dict[int, int]) -> int:
    held, most, at = 0, 0, 0
    for time in sorted(steps):
        held += steps[time]
        if held > most:
            most, at = held, time
    return at
