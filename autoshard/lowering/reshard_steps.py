"""The steps of a value from how it is made to how its readers take it, in a decided plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from autoshard.encoding.encoded import Decoded, Encoded
from autoshard.graph.program import Op
from autoshard.reshard import Step, is_folded

SharedStep: TypeAlias = tuple[int, Step, int]
"""A step of a value for the ops of one region: value index, step, region index."""


@dataclass(frozen=True, slots=True)
class ReshardSteps:
    """Reshards of a plan that send something, read by read."""

    encoded: Encoded
    decoded: Decoded
    _moved: dict[tuple[int, int], tuple[Step, ...]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        ops, layouts = self.encoded.graph.ops, self.decoded.layouts
        for index, candidate in self.decoded.candidates.items():
            reads = zip(ops[index].operands, candidate.operands, strict=False)
            for position, (value, wanted) in enumerate(reads):
                if layouts[value] == wanted:
                    continue
                steps = reshard_steps(self.encoded, self.decoded, ops[index], position)
                if self.encoded.read_bits.to(ops[index], position) == 0:
                    steps = self._from_first_sent(value, steps)
                self._moved[index, position] = steps

    def _from_first_sent(self, value: int, steps: tuple[Step, ...]) -> tuple[Step, ...]:
        """The steps of what one constant fills that compilers do not fold, or have not folded."""
        parts, shape = self.encoded.parts, self.encoded.graph.values[value].shape
        sent = (i for i, step in enumerate(steps) if not is_folded(step, parts, shape))
        return steps[next(sent, len(steps)) :]

    def of(self, op: Op, position: int) -> tuple[Step, ...]:
        """The steps that bring an operand where an op wants it; none if it is there."""
        return self._moved.get((op.index, position), ())

    def all(self) -> Iterator[tuple[Op, int, Step]]:
        """Every step, with the op and the operand position that it is for."""
        for (index, position), steps in self._moved.items():
            for step in steps:
                yield self.encoded.graph.ops[index], position, step

    def shared(self, op: Op, position: int, step: Step) -> SharedStep:
        """A step of a read, which serves every reader in its region, and none outside."""
        return op.operands[position], step, self.encoded.graph.region_of_read(op, position)

    def sent_bits(self) -> Mapping[SharedStep, int]:
        """Bits of an element in every step: those of the reader that takes the most of it.

        A step serves all readers of one region that have it on their way.
        """
        found: dict[SharedStep, int] = {}
        for op, position, step in self.all():
            key, bits = self.shared(op, position, step), self.encoded.read_bits.to(op, position)
            bits = bits or self.encoded.read_bits.made(op.operands[position])
            found[key] = max(found.get(key, 0), bits)
        return found


def reshard_steps(encoded: Encoded, decoded: Decoded, op: Op, position: int) -> tuple[Step, ...]:
    """The steps that bring an operand where an op with a choice wants it; none if it is there.

    Where the value is moved for several readers, this one starts from that copy if it is nearer.
    """
    value = encoded.graph.values[op.operands[position]]
    maker = encoded.graph.ops[value.op]
    if not value.shape or maker.index not in decoded.candidates:
        return ()
    made = decoded.layouts[value.index]
    wanted = decoded.candidates[op.index].operands[position]
    if made == wanted:
        return ()
    table = encoded.table(value.index, encoded.read_bits.to(op, position))
    copy = decoded.shared.get((op.index, position), made)
    seconds, index = table.seconds, table.index
    is_nearer = seconds[index[copy], index[wanted]] < seconds[index[made], index[wanted]]
    if copy == made or not is_nearer:
        return table.chain(made, wanted)
    return (*table.chain(made, copy), *table.chain(copy, wanted))
