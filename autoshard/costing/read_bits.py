"""How wide the elements of a value travel to each of its readers.

Where a backend multiplies narrower elements than it is given, it narrows an operand before it moves
it. So a read by a product sends fewer bytes than another of the same value. Arguments and results
of a type that the backend widens travel as wide as intermediates do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass

from autoshard.backends import Backend
from autoshard.graph.last_uses import carry_stop
from autoshard.graph.program import PRODUCTS, Graph, Op, OpClass, OpKind

_MOVES_DATA = frozenset(
    {"broadcast_in_dim", "concatenate", "reshape", "reverse", "select", "slice", "transpose"}
)
_HAND_ON = frozenset({"while"})
_MOVES_FIRST = frozenset({"dynamic_slice", "gather", "pad"})


@dataclass(frozen=True, slots=True)
class ReadBits:
    """Bits of an element as sent to each reader.

    Args:
        graph: The program.
        narrowed: By op index and operand position, where they are fewer than the value has.
        widened: By value, where they are more.
    """

    graph: Graph
    narrowed: Mapping[tuple[int, int], int]
    widened: Mapping[int, int]

    @classmethod
    def of(cls, graph: Graph, backend: Backend) -> ReadBits:
        """What a backend narrows and widens of a program."""
        sent = {v.index: backend.layout.intermediate_bits(v.dtype, v.bits) for v in graph.values}
        widened = {value: bits for value, bits in sent.items() if bits > graph.values[value].bits}
        if not backend.collectives.convert_motion:
            return cls(graph, {}, widened)
        return cls(graph, _narrowed(graph, backend, graph.consumers, _HAND_ON), widened)

    def to(self, op: Op, position: int) -> int:
        """Bits of an element of the operand at a position."""
        value = op.operands[position]
        found = self.narrowed.get((op.index, position), self.widened.get(value))
        return self.graph.values[value].bits if found is None else found

    def written(self, with_products: Set[int]) -> Mapping[int, int]:
        """By value, bits of an element as written, of what is read in narrower ones alone."""
        readers = self.graph.consumers
        found = {}
        for op in self.graph.ops:
            is_fused = op.op_class in (OpClass.GATHER, OpClass.ELEMENTWISE)
            is_fused |= any(value in with_products for value in op.results)
            if op.kind is not OpKind.COMPUTE or len(op.results) != 1 or not is_fused:
                continue
            (value,) = op.results
            others = [self.graph.ops[i] for i in readers[value]]
            if value in with_products:
                others = [o for o in others if o.op_class is not OpClass.REDUCE]
            widest = max((self._widest(value, o) for o in others), default=0)
            if 0 < widest < self.graph.values[value].bits:
                found[value] = widest
        return found

    def _widest(self, value: int, reader: Op) -> int:
        places = (place for place, read in enumerate(reader.operands) if read == value)
        return max(self.to(reader, place) for place in places)


@dataclass(frozen=True, slots=True)
class LoopCopy:
    """A narrower copy of what loops read unchanged, made before the first of them.

    Args:
        value: What it is a copy of.
        bits: Of an element.
        start: When the first loop starts.
        stop: When the last one ends.
        joins: Ops with which it enters them.
    """

    value: int
    bits: int
    start: int
    stop: int
    joins: tuple[int, ...]


def copies_for_loops(graph: Graph, backend: Backend) -> Iterator[LoopCopy]:
    """What a backend narrows as a whole, where its loops take it in narrower elements.

    A loop in which it stands behind a barrier (of a recomputed layer) takes it likewise.
    """
    if not backend.collectives.convert_motion or all(op.name != "while" for op in graph.ops):
        return
    found: dict[int, LoopCopy] = {}
    narrowed = _narrowed(graph, backend, graph.consumers, _HAND_ON | {"optimization_barrier"})
    for (index, _), bits in sorted(narrowed.items()):
        op = graph.ops[index]
        if op.name != "while" or graph.maker(op.operands[0]).name == "while":
            continue  # of a loop in a loop, the outer one says it
        value, stop = op.operands[0], carry_stop(graph, op)
        one = found.get(value, LoopCopy(value, bits, index, stop, ()))
        joins = (*one.joins, index)
        found[value] = LoopCopy(value, max(one.bits, bits), one.start, max(one.stop, stop), joins)
    yield from found.values()


def _narrowed(
    graph: Graph, backend: Backend, readers: list[list[int]], handing_on: frozenset[str]
) -> dict[tuple[int, int], int]:
    narrowed: dict[tuple[int, int], int] = {}
    for op in reversed(graph.ops):  # an op that only moves data sends what its readers take
        for position, value in enumerate(op.operands):
            bits = graph.values[value].bits
            taken = _taken(graph, op, position, backend, readers, narrowed, handing_on)
            if taken < bits:
                narrowed[op.index, position] = taken
    return narrowed


def _taken(
    graph: Graph,
    op: Op,
    position: int,
    backend: Backend,
    readers: list[list[int]],
    narrowed: Mapping[tuple[int, int], int],
    handing_on: frozenset[str],
) -> int:
    """Bits of an operand that an op makes use of."""
    value = graph.values[op.operands[position]]
    if op.kind is OpKind.COMPUTE and op.op_class in PRODUCTS:
        return value.bits if op.is_exact else backend.layout.operand_bits(value.dtype, value.bits)
    if op.kind is OpKind.COMPUTE and op.name == "convert":
        return min(value.bits, graph.values[op.results[0]].bits)
    if not _hands_on(op, position, handing_on):
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


def _hands_on(op: Op, position: int, joins: frozenset[str]) -> bool:
    """True where an op gives its readers an operand as it is: rearranged, looked up, in a loop."""
    if op.kind is OpKind.JOIN:
        return op.name in joins and len(op.operands) == 1  # what a loop reads unchanged
    if op.name in _MOVES_FIRST:
        return position == 0
    return op.kind is OpKind.CONSTRAINT or op.name in _MOVES_DATA
