"""The temporary buffers of a compiled program: bytes, memory space, live ranges in its schedule.

Bodies of loops stand in the place of the loops, so that times run through the whole program.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TypeAlias

from autoshard.hlo.text import HloModule, Instruction, element_types, laid_out_bytes

_Tree: TypeAlias = "frozenset[int] | list[_Tree]"
"""The buffers that a result lies in; of a tuple, those of each element."""

_RENAMES = frozenset(
    {"bitcast", "opt-barrier", "optimization-barrier", "async-update", "add-dependency"}
)
_IN_PLACE = frozenset({"dynamic-update-slice", "scatter"})
_ALIASING = re.compile(r"output_to_operand_aliasing=\{((?:\{[^}]*\}: \([^)]*\)(?:, )?)*)\}")
_ALIAS = re.compile(r"\{([\d, ]*)\}: \((\d+), \{([\d, ]*)\}")
_ON_CHIP = re.compile(r"S\([1-9]\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledBuffer:
    """A temporary.

    Args:
        instruction: That writes it first.
        type_text: With its layout.
        num_bytes: In whole tiles.
        start: Time at which it is written.
        stop: Time after which it is not read.
        in_hbm: It lies in HBM; otherwise in a memory on the chip.
    """

    instruction: Instruction
    type_text: str
    num_bytes: int
    start: int
    stop: int
    in_hbm: bool


def compiled_buffers(module: HloModule) -> tuple[CompiledBuffer, ...]:
    """Temporaries of a scheduled module, in the order in which they are written.

    Neither arguments nor results are among them; what a loop carries counts where it is made.
    """
    reader = _Reader(module)
    reader.run()
    return tuple(reader.found())


def live_at_peak(buffers: Sequence[CompiledBuffer]) -> tuple[CompiledBuffer, ...]:
    """Those that are live when most is, the largest first."""
    changes: defaultdict[int, int] = defaultdict(int)
    for one in buffers:
        changes[one.start] += one.num_bytes
        changes[one.stop] -= one.num_bytes
    times = sorted(changes)
    held = list(accumulate(changes[time] for time in times))
    if not held:
        return ()
    peak = times[held.index(max(held))]
    live = (one for one in buffers if one.start <= peak < one.stop)
    return tuple(sorted(live, key=lambda one: -one.num_bytes))


@dataclass(slots=True)
class _Reader:
    module: HloModule
    writers: list[tuple[Instruction, str]] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    stops: list[int] = field(default_factory=list)
    elsewhere: set[int] = field(default_factory=set)  # in the buffers of others, or no temporaries
    time: int = 0

    def run(self) -> None:
        self.elsewhere |= _all(self._computation(self.module.entry, None))

    def found(self) -> Iterator[CompiledBuffer]:
        """The temporaries."""
        for index, (instruction, type_text) in enumerate(self.writers):
            num_bytes = laid_out_bytes(type_text)
            if index not in self.elsewhere and num_bytes:
                yield CompiledBuffer(
                    instruction=instruction,
                    type_text=type_text,
                    num_bytes=num_bytes,
                    start=self.starts[index],
                    stop=self.stops[index] + 1,
                    in_hbm=not _ON_CHIP.search(type_text),
                )

    def _computation(self, name: str, given: Sequence[_Tree] | None) -> _Tree:
        """Run through a computation; the buffers of its result."""
        known: dict[str, _Tree] = {}
        root: _Tree = frozenset()
        for instruction in self.module.computations.get(name, {}).values():
            operands = [known.get(operand, frozenset()) for operand in instruction.operands]
            if instruction.opcode == "parameter" and given is not None:
                made = given[int(instruction.operands[0])]
            else:
                self.time += 1
                made = self._made(instruction, operands)
            if instruction.opcode not in ("tuple", "get-tuple-element", "bitcast", "parameter"):
                for used in (*operands, made):
                    self._read(_all(used))
            known[instruction.name] = made
            if instruction.is_root:
                root = made
        if given is None:
            self._read(_all(root))
        return root

    def _read(self, buffers: frozenset[int]) -> None:
        for index in buffers:
            self.stops[index] = self.time

    def _made(self, one: Instruction, operands: list[_Tree]) -> _Tree:
        opcode = one.opcode
        if opcode == "tuple":
            return operands
        if opcode == "get-tuple-element":
            return _at(operands[0], (one.number("index") or 0,))
        if opcode in _RENAMES:
            return operands[0]
        if opcode in _IN_PLACE:
            return operands[0]
        if opcode == "constant":
            return frozenset()
        if opcode in ("while", "call", "conditional"):
            return self._called(one, operands)
        if opcode.endswith("-done"):
            return _at(operands[0], (0 if opcode == "copy-done" else 1,))
        if opcode.endswith("-start") and opcode != "all-reduce-start":
            return self._started(one, operands)
        made = self._new(one, one.type_text)
        if opcode == "parameter":
            self.elsewhere |= _all(made)
        for place, operand, inner in _aliases(one):
            shared = _at(operands[operand], inner)
            self.elsewhere |= _all(_at(made, place))
            if not place:
                made = shared
            elif isinstance(made, list):
                made[place[0]] = shared
        return made

    def _started(self, one: Instruction, operands: list[_Tree]) -> _Tree:
        """Of an asynchronous start: the operands that it passes on, the result, its flags."""
        made = self._new(one, one.type_text)
        assert isinstance(made, list)
        passed = 1 if one.opcode == "copy-start" else 0
        self.elsewhere |= _all(made[passed])
        made[passed] = operands if one.opcode == "async-start" else operands[0]
        return made

    def _called(self, one: Instruction, operands: list[_Tree]) -> _Tree:
        made: _Tree = frozenset()
        for kind, name in one.called():
            branches = operands[1:] if one.opcode == "conditional" else operands
            begun = len(self.writers)
            found = self._computation(name, branches)
            if kind == "body":  # what a loop returns lies in the place of what it carries
                self.elsewhere |= {index for index in _all(found) if index >= begun}
            elif kind != "condition":
                made = found
            if one.opcode == "conditional":
                operands = [operands[0], *operands[2:]]
        if one.opcode == "while":
            self._read(_all(operands[0]))
            return operands[0]
        return made

    def _new(self, one: Instruction, type_text: str) -> _Tree:
        parts = element_types(type_text)
        if parts is not None:
            return [self._new(one, part) for part in parts]
        self.writers.append((one, type_text))
        self.starts.append(self.time)
        self.stops.append(self.time)
        return frozenset({len(self.writers) - 1})


def _all(tree: _Tree) -> frozenset[int]:
    if isinstance(tree, list):
        return frozenset[int]().union(*map(_all, tree))
    return tree


def _at(tree: _Tree, places: Sequence[int]) -> _Tree:
    for place in places:
        tree = tree[place] if isinstance(tree, list) and place < len(tree) else tree
    return tree


def _aliases(one: Instruction) -> Iterator[tuple[tuple[int, ...], int, tuple[int, ...]]]:
    """Elements of the result that lie in an operand, and of which element of it."""
    found = _ALIASING.search(one.attributes)
    for place, operand, inner in _ALIAS.findall(found[1] if found else ""):
        yield _numbers(place), int(operand), _numbers(inner)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part.strip())
