"""Widths in which elements are sent: conversions move in front of what is sent (ConvertMover).

A matmul that multiplies narrower elements than it is given has its operand narrowed before that is
moved, so that it sends fewer bytes than another reader of the value. A type that the compiler
widens is sent as wide as intermediates are, and one constant not at all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from autoshard.backends import Backend
from autoshard.graph.buffers import Buffers
from autoshard.graph.dataflow import source_of
from autoshard.graph.last_uses import carry_stop
from autoshard.graph.program import PRODUCTS, Graph, Op, OpClass, OpKind
from autoshard.graph.splats import is_filled, splats
from autoshard.graph.stacks import stacked_by

_REARRANGES = frozenset(
    {"broadcast_in_dim", "concatenate", "reshape", "reverse", "select", "slice", "transpose"}
)
_REARRANGES_FIRST = frozenset({"dynamic_slice", "gather", "pad"})  # their first operand
_SLICES = frozenset({"dynamic_slice", "gather", "slice"})
_WHILE = frozenset({"while"})


@dataclass(frozen=True, slots=True)
class ReadBits:
    """Bits of an element as sent to each reader.

    Args:
        narrowed: By op index and operand position, where they are fewer than the value has; none
            of a value that one constant fills.
        widened: By value, where they are more.
    """

    graph: Graph
    narrowed: Mapping[tuple[int, int], int]
    widened: Mapping[int, int]

    @classmethod
    def of(cls, graph: Graph, backend: Backend) -> ReadBits:
        """The values of a program that a compiler narrows and widens."""
        sent = {v.index: backend.layout.intermediate_bits(v.dtype, v.bits) for v in graph.values}
        widened = {value: bits for value, bits in sent.items() if bits > graph.values[value].bits}
        filled = splats(graph)
        unsent = {
            (op.index, place): 0
            for op in graph.ops
            for place, value in enumerate(op.operands)
            if is_filled(graph, op, place, filled) and graph.maker(value).kind is not OpKind.FREE
        }
        return cls(graph, {**_narrowed(graph, backend, _WHILE), **unsent}, widened)

    def to(self, op: Op, position: int) -> int:
        """Bits of an element of the operand at a position."""
        found = self.narrowed.get((op.index, position))
        return self.made(op.operands[position]) if found is None else found

    def made(self, value: int) -> int:
        """Bits of an element of a value as intermediates are."""
        return self.widened.get(value, self.graph.values[value].bits)

    def written(self, with_products: Collection[int]) -> Mapping[int, int]:
        """By value, bits of an element as written, of what is read in narrower ones alone."""
        found = {}
        for op in self.graph.ops:
            is_fused = op.op_class in (OpClass.GATHER, OpClass.ELEMENTWISE)
            is_fused |= any(value in with_products for value in op.results)
            is_made = op.kind is OpKind.COMPUTE and is_fused
            if len(op.results) != 1 or not (is_made or stacked_by(self.graph, op)):
                continue
            (value,) = op.results
            readers = [self.graph.ops[i] for i in self.graph.consumers[value]]
            if value in with_products:
                readers = [one for one in readers if one.op_class is not OpClass.REDUCE]
            widest = max((self._widest(value, one) for one in readers), default=0)
            if 0 < widest < self.graph.values[value].bits:
                found[value] = widest
        return found

    def _widest(self, value: int, reader: Op) -> int:
        places = (place for place, read in enumerate(reader.operands) if read == value)
        return max(self.to(reader, place) for place in places)


def _narrowed(
    graph: Graph, backend: Backend, joins: frozenset[str]
) -> Mapping[tuple[int, int], int]:
    """By op index and operand position, bits of an element that is made use of, if fewer."""
    narrowed: dict[tuple[int, int], int] = {}
    is_far = backend.collectives.far_convert_motion
    if not backend.collectives.convert_motion:
        return narrowed

    def taken(op: Op, position: int) -> int:
        value = graph.values[op.operands[position]]
        if op.kind is OpKind.COMPUTE and op.op_class in PRODUCTS:
            exact = op.is_exact
            return value.bits if exact else backend.layout.operand_bits(value.dtype, value.bits)
        if op.kind is OpKind.COMPUTE and op.name == "convert":
            return min(value.bits, graph.values[op.results[0]].bits)
        if not _hands_on(op, position, joins, is_far=is_far):
            return value.bits
        made = op.results[0]
        reads = (
            narrowed.get((index, place), value.bits)
            for index in graph.consumers[made]
            for place, read in enumerate(graph.ops[index].operands)
            if read == made
        )
        return max(reads, default=value.bits)

    for op in reversed(graph.ops):  # an op that only rearranges sends what its readers take
        stacking = stacked_by(graph, op)
        if stacking is not None:
            narrowed |= _narrowed_stack(graph, backend, op, stacking, narrowed)
            continue
        for position, value in enumerate(op.operands):
            bits = taken(op, position)
            if bits < graph.values[value].bits:
                narrowed[op.index, position] = bits
    return narrowed


def _narrowed_stack(
    graph: Graph,
    backend: Backend,
    join: Op,
    stacking: Op,
    narrowed: Mapping[tuple[int, int], int],
) -> dict[tuple[int, int], int]:
    """Bits of a stack, by op and operand position, if all its readers take fewer.

    Source: openxla/xla, `bfloat16_propagation.cc`.
    """
    stack = graph.values[join.results[0]]
    bits = max(
        (
            narrowed.get((index, place), stack.bits)
            for index in graph.consumers[stack.index]
            for place, read in enumerate(graph.ops[index].operands)
            if read == stack.index and index != stacking.index
        ),
        default=stack.bits,
    )
    if bits >= stack.bits or backend.layout.operand_bits(stack.dtype, stack.bits) > bits:
        return {}
    return {(op.index, place): bits for op in (join, stacking) for place in range(2)}


def _hands_on(op: Op, position: int, joins: frozenset[str], *, is_far: bool) -> bool:
    """True where an op gives its readers an operand as it is: rearranged, looked up, in a loop.

    Slices, and what enters a loop, count only where conversions move far (`far_convert_motion`).
    """
    if not is_far and (op.kind is OpKind.JOIN or op.name in _SLICES):
        return False
    if op.kind is OpKind.JOIN:
        return op.name in joins and len(op.operands) == 1  # what a loop reads unchanged
    if op.name in _REARRANGES_FIRST:
        return position == 0
    return op.kind is OpKind.CONSTRAINT or op.name in _REARRANGES


@dataclass(frozen=True, slots=True)
class LoopCopy:
    """A narrower copy of what loops read unchanged, made before the first of them.

    Args:
        value: What it is a copy of.
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
    """Values narrowed as a whole, as all their loops take them in narrower elements.

    A loop in which it stands behind a barrier (of a recomputed layer) takes it likewise.
    """
    has_loop = any(op.name == "while" for op in graph.ops)
    if not (has_loop and backend.collectives.far_convert_motion):
        return
    found: dict[int, LoopCopy] = {}
    narrowed = _narrowed(graph, backend, _WHILE | {"optimization_barrier"})
    for (index, _), bits in sorted(narrowed.items()):
        op = graph.ops[index]
        if op.name != "while" or graph.maker(op.operands[0]).name == "while":
            continue  # of a loop in a loop, the outer one says it
        value, stop = op.operands[0], carry_stop(graph, op)
        one = found.get(value, LoopCopy(value, bits, index, stop, ()))
        joins = (*one.joins, index)
        found[value] = LoopCopy(value, max(one.bits, bits), one.start, max(one.stop, stop), joins)
    yield from found.values()


def narrowed_argument(graph: Graph, buffers: Buffers, value: int, bits: int) -> Op | None:
    """The argument of the program that a value is narrowed from before it is sent.

    It may be sliced, reordered or handed to a loop unchanged in between. None for other values, and
    where the argument is no wider.
    """

    def passes(op: Op, made: int) -> bool:
        is_invariant = op.kind is OpKind.JOIN and len(op.operands) == 1
        is_handed_on = op.op_class in (OpClass.COPY, OpClass.NOTHING) or op.name == "convert"
        return is_invariant or (is_handed_on and buffers.is_fused(op, made))

    source = graph.maker(source_of(graph, value, passes))
    if source.kind is not OpKind.ARGUMENT or not graph.values[value].bits:
        return None
    return source if bits < graph.values[source.results[0]].bits else None
