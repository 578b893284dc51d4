"""Partial sums that a program only adds: to one another, or up in a loop.

`a @ b + c @ d` is the gradient of what several matmuls read, or of rows that are looked up twice;
`acc = acc + a @ b` that of microbatches, or of a weight that a recurrence reads in every step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from autoshard.graph.op_traits import TRANSPARENT
from autoshard.graph.program import PRODUCTS, Graph, Op, OpClass, OpKind, Region

_SCATTER = "scatter"


@dataclass(frozen=True, slots=True)
class Summand:
    """An operand of an addition, and the op that makes it; of several added ones, the first.

    Args:
        op: A matmul, convolution or scatter.
        order: By dimension of the operand, the dimension of the op's result that it is.
        addend_at: The addition before of something that is no partial sum; -1 for none.
    """

    op: int
    order: tuple[int, ...]
    addend_at: int = -1


@dataclass(frozen=True, slots=True)
class AddedSums:
    """Two partial sums that are added, in the order of the operands."""

    first: Summand
    second: Summand


@dataclass(frozen=True, slots=True)
class LoopSum:
    """A partial sum that a loop accumulates.

    Args:
        op: The matmul or reduction that makes it.
        add: The op that adds it to the carry.
        carried: The carry.
        position: Of the partial sum among the operands of `add`.
        order: By dimension of that operand, the dimension of the op's result that it is.
        runs: Of the body in one run of the loop.
    """

    op: int
    add: int
    carried: int
    position: int
    order: tuple[int, ...]
    runs: float


def added_sums(graph: Graph) -> tuple[AddedSums, ...]:
    """Every addition of two partial sums that nothing else reads, in program order.

    Matmuls are added to matmuls and scatters to scatters. On the way to the addition, dimensions
    may be reordered. A scatter and its addend are one: the compiler scatters into that.
    """
    return tuple(_added_sums(graph))


def _added_sums(graph: Graph) -> Iterator[AddedSums]:
    found: dict[int, Summand] = {}  # by value
    for op in graph.ops:
        if op.kind is not OpKind.COMPUTE or len(op.results) != 1:
            continue
        read = [
            found.get(value) if _is_only_read(graph, value, op) else None for value in op.operands
        ]
        pair = _pair(graph, *read) if op.name == "add" and len(read) == 2 else None
        if pair is not None:
            yield pair
        made = _summand(graph, op, read) if pair is None else pair.first
        if made is not None:
            found[op.results[0]] = made


def _is_only_read(graph: Graph, value: int, op: Op) -> bool:
    return graph.consumers[value] == [op.index] and graph.maker(value).region == op.region


def _summand(graph: Graph, op: Op, read: Sequence[Summand | None]) -> Summand | None:
    """The partial sum that an op makes, or hands on."""
    if op.op_class in PRODUCTS or op.name == _SCATTER:
        return Summand(op.index, tuple(range(len(graph.values[op.results[0]].shape))))
    if op.name == "transpose" and read[0] is not None:
        return replace(read[0], order=_reordered(op, read[0].order))
    if op.name == "add":
        for value, one in zip(op.operands, read, strict=True):
            is_as_made = one is not None and graph.values[value].op == one.op
            if one is not None and is_as_made and graph.ops[one.op].name == _SCATTER:
                return replace(one, addend_at=op.index)
    return None


def _reordered(op: Op, order: tuple[int, ...]) -> tuple[int, ...]:
    assert op.rule is not None
    (source,), (target,) = op.rule.operands, op.rule.results
    return tuple(order[source.index(factors)] for factors in target)


def _pair(graph: Graph, first: Summand | None, second: Summand | None) -> AddedSums | None:
    """Sums of two different ops that are both matmuls or both scatters."""
    if first is None or second is None or first is second:
        return None
    is_scatter = [graph.ops[one.op].name == _SCATTER for one in (first, second)]
    return AddedSums(first, second) if is_scatter[0] == is_scatter[1] else None


def loop_sums(graph: Graph) -> tuple[LoopSum, ...]:
    """Every partial sum of the program that a loop does no more with than to accumulate it.

    Only the addition reads the carry, and only the carry reads the addition. On the way to it, the
    sum may be converted to another type, its dimensions reordered and those of one element dropped.
    """
    carries = (op for op in graph.ops if op.kind is OpKind.JOIN and len(op.operands) == 2)
    found = (_loop_sum(graph, join) for join in carries if join.name == "while")
    return tuple(one for one in found if one is not None)


def _loop_sum(graph: Graph, join: Op) -> LoopSum | None:
    carried, returned = join.results[0], join.operands[1]
    add = graph.maker(returned)
    body = graph.regions[add.region]
    if add.name != "add" or body.kind != "loop" or graph.consumers[returned] != [join.index]:
        return None
    reads_inside = [i for i in graph.consumers[carried] if body.start <= i < body.stop]
    if reads_inside != [add.index] or add.operands.count(carried) != 1 or body.trip_count <= 1:
        return None
    position = 1 - add.operands.index(carried)
    found = _summed(graph, add.operands[position], body)
    if found is None:
        return None
    return LoopSum(found[0].index, add.index, carried, position, found[1], body.trip_count)


def _summed(graph: Graph, value: int, body: Region) -> tuple[Op, tuple[int, ...]] | None:
    """The op of the same body whose sum arrives as a value, and the order of its dimensions."""
    order = tuple(range(len(graph.values[value].shape)))
    while len(graph.consumers[value]) == 1:
        op = graph.maker(value)
        if op.region != body.index or op.kind is not OpKind.COMPUTE or op.rule is None:
            return None
        is_reduced = _is_reduced(graph, op)
        if op.op_class in PRODUCTS or (is_reduced and op.is_sum):
            return op, order
        if op.name not in TRANSPARENT and (op.op_class is not OpClass.REDUCE or is_reduced):
            return None
        source, target = op.rule.operands[0], op.rule.results[0]
        if any(not target[dim] or target[dim] not in source for dim in order):
            return None
        order = tuple(source.index(target[dim]) for dim in order)
        value = op.operands[0]
    return None


def _is_reduced(graph: Graph, op: Op) -> bool:
    """True where a reduction takes more than one element together."""
    if op.op_class is not OpClass.REDUCE or len(op.results) != 1:
        return False
    before, after = (graph.values[value].shape for value in (op.operands[0], op.results[0]))
    return prod(before) != prod(after)
