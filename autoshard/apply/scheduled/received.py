"""The bytes that a device of a compiled program receives from others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from autoshard.errors import InputError
from autoshard.hlo.replica_groups import parse_groups
from autoshard.hlo.text import HloModule, Instruction, parse_hlo
from autoshard.hlo.trip_counts import known_trip_count

_PAIRS = re.compile(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}")
_PAIR = re.compile(r"\{(\d+),(\d+)\}")


@dataclass(frozen=True, slots=True)
class Received:
    """What one instruction brings to a device, on average over the devices.

    Args:
        kind: `all-gather`, `reduce-scatter`, `all-reduce`, `all-to-all`, `collective-permute`.
        num_bytes: Each time it runs.
        count: How often it runs.
    """

    kind: str
    num_bytes: Fraction
    count: int


def received_bytes(text: str) -> tuple[Received, ...]:
    """Every communication of the optimized HLO of a program that moves something.

    A device receives what it does not have: of an all-gather all but its own part, of a
    reduce-scatter as much as its group sends it at least, of an all-reduce twice that. Of a
    permutation only devices that get something from another count.

    Raises:
        InputError: A loop with communication does not say how often it runs, or the text is not
            HLO.
    """
    module = parse_hlo(text)
    return tuple(_walk(module, module.entry, 1))


def total_received_bytes(text: str) -> Fraction:
    """The same, added up."""
    return sum((r.num_bytes * r.count for r in received_bytes(text)), Fraction(0))


def _walk(module: HloModule, computation: str, count: int) -> Iterator[Received]:
    instructions = module.computations.get(computation, {})
    for instruction in instructions.values():
        kind = instruction.opcode.removesuffix("-start")
        if kind in _SHARES:
            size = sum(instructions[name].num_bytes for name in instruction.operands)
            share = _SHARES[kind](instruction, module.num_devices)
            if share:
                yield Received(kind, size * share, count)
            continue
        if instruction.opcode in {"async-update", "async-done"}:
            continue
        times = count
        if instruction.opcode == "while":
            trips = known_trip_count(module, instruction)
            if trips is None:
                inside = [r for _, name in instruction.called() for r in _walk(module, name, 1)]
                if inside:
                    raise InputError(
                        "a loop with communication does not say how often it runs",
                        where=f"HLO instruction {instruction.name}",
                        fix="use loops with a fixed number of turns",
                    )
            times = count * (1 if trips is None else trips)
        for _, name in instruction.called():
            yield from _walk(module, name, times)


def _group(instruction: Instruction, num_devices: int) -> int:
    return max(map(len, parse_groups(instruction.attributes, num_devices)), default=1)


def _gathered(instruction: Instruction, num_devices: int) -> Fraction:
    return Fraction(_group(instruction, num_devices) - 1)


def _scattered(instruction: Instruction, num_devices: int) -> Fraction:
    size = _group(instruction, num_devices)
    return Fraction(size - 1, size)


def _reduced(instruction: Instruction, num_devices: int) -> Fraction:
    return 2 * _scattered(instruction, num_devices)


def _permuted(instruction: Instruction, num_devices: int) -> Fraction:
    found = _PAIRS.search(instruction.attributes)
    pairs = _PAIR.findall(found[1]) if found else []
    return Fraction(sum(source != target for source, target in pairs), num_devices)


_SHARES = {
    "all-gather": _gathered,
    "reduce-scatter": _scattered,
    "all-reduce": _reduced,
    "all-to-all": _scattered,
    "collective-permute": _permuted,
}
"""For each kind, received bytes over bytes of the operands."""
