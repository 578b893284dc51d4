"""How wide the elements of a value travel to each of its readers.

Where a backend multiplies narrower elements than it is given, it narrows an operand before it moves
it. So a read by a product sends fewer bytes than another of the same value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autoshard.backend_habits import converts_before_moving, multiplied_bits
from autoshard.graph.buffers import consumers_of
from autoshard.graph.program import PRODUCTS, Graph, Op, OpKind

_MOVES_DATA = frozenset(
    {"broadcast_in_dim", "concatenate", "reshape", "reverse", "select", "slice", "transpose"}
)
_MOVES_FIRST = frozenset({"dynamic_slice", "gather", "pad"})


@dataclass(frozen=True, slots=True)
class ReadBits:
    """Bits of an element as sent to each reader.

    Args:
        graph: The program.
        narrowed: By op index and operand position, where they are fewer than the value has.
    """

    graph: Graph
    narrowed: Mapping[tuple[int, int], int]

    @classmethod
    def of(cls, graph: Graph, backend: str) -> ReadBits:
        """What a backend narrows of a program."""
        if not converts_before_moving(backend):
            return cls(graph, {})
        readers = consumers_of(graph)
        narrowed: dict[tuple[int, int], int] = {}
        for op in reversed(graph.ops):  # an op that only moves data sends what its readers take
            for position, value in enumerate(op.operands):
                bits = graph.values[value].bits
                taken = _taken(graph, op, position, backend, readers, narrowed)
                if taken < bits:
                    narrowed[op.index, position] = taken
        return cls(graph, narrowed)

    def to(self, op: Op, position: int) -> int:
        """Bits of an element of the operand at a position."""
        found = self.narrowed.get((op.index, position))
        return self.graph.values[op.operands[position]].bits if found is None else found


def _taken(
    graph: Graph,
    op: Op,
    position: int,
    backend: str,
    readers: list[list[int]],
    narrowed: Mapping[tuple[int, int], int],
) -> int:
    """Bits of an operand that an op makes use of."""
    value = graph.values[op.operands[position]]
    if op.kind is OpKind.COMPUTE and op.op_class in PRODUCTS:
        return value.bits if op.is_exact else multiplied_bits(backend, value.dtype, value.bits)
    if op.kind is OpKind.COMPUTE and op.name == "convert":
        return min(value.bits, graph.values[op.results[0]].bits)
    if not _hands_on(op, position):
        return value.bits
    made = op.results[0]
    return max(
        (
            narrowed.get((index, place), value.bits)
            for index in readers[made]
            for place, read in enumerate(graph.ops[index].operands)
            if read == made
        ),
        default=value.bits,
    )


def _hands_on(op: Op, position: int) -> bool:
    """Whether an op gives its readers an operand as it is: rearranged, looked up, in a loop."""
    if op.kind is OpKind.JOIN:
        return op.name == "while" and len(op.operands) == 1  # what a loop reads unchanged
    if op.name in _MOVES_FIRST:
        return position == 0
    return op.kind is OpKind.CONSTRAINT or op.name in _MOVES_DATA
