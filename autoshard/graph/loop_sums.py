"""Sums that a loop adds up: `acc = acc + a @ b` in every run of its body, and no more with acc.

Gradients over microbatches are such, and those of a weight that a recurrence reads in every step;
those of its bias are reductions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from autoshard.graph.op_traits import TRANSPARENT
from autoshard.graph.program import PRODUCTS, Graph, Op, OpClass, OpKind, Region


@dataclass(frozen=True, slots=True)
class LoopSum:
    """One product, or sum over dimensions, that a loop adds up.

    Args:
        op: The product or reduction.
        add: The op that adds it to what the loop carries.
        carried: What the loop carries.
        position: Of what is added among the operands of `add`.
        order: By dimension of that operand, the dimension of the op's result that it is.
        runs: Of the body in one run of the loop.
    """

    op: int
    add: int
    carried: int
    position: int
    order: tuple[int, ...]
    runs: float


def loop_sums(graph: Graph) -> tuple[LoopSum, ...]:
    """Every product and sum of the program that a loop does no more with than to add it up.

    Only the addition reads what the loop has so far, and only the carry reads the addition. On the
    way to it, what is summed may be converted to another type, its dimensions reordered and those
    of one element dropped.
    """
    found = (_loop_sum(graph, join, graph.consumers) for join in graph.ops if _carries(join))
    return tuple(one for sums in found for one in sums)


def _carries(op: Op) -> bool:
    return op.kind is OpKind.JOIN and op.name == "while" and len(op.operands) == 2


def _loop_sum(graph: Graph, join: Op, readers: list[list[int]]) -> Iterator[LoopSum]:
    carried, returned = join.results[0], join.operands[1]
    add = graph.maker(returned)
    body = graph.regions[add.region]
    if add.name != "add" or body.kind != "loop" or readers[returned] != [join.index]:
        return
    reads_inside = [index for index in readers[carried] if body.start <= index < body.stop]
    if reads_inside != [add.index] or add.operands.count(carried) != 1 or body.trip_count <= 1:
        return
    position = 1 - add.operands.index(carried)
    found = _summed(graph, add.operands[position], body, readers)
    if found is not None:
        yield LoopSum(found[0].index, add.index, carried, position, found[1], body.trip_count)


def _summed(
    graph: Graph, value: int, body: Region, readers: list[list[int]]
) -> tuple[Op, tuple[int, ...]] | None:
    """The op of the same body whose sum arrives as a value, and the order of its dimensions."""
    order = tuple(range(len(graph.values[value].shape)))
    while len(readers[value]) == 1:
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
