"""Ops that sum and whose results are added to one another: `a @ b + c @ d`.

Gradients of what several products read are such, and those of rows that are looked up twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from autoshard.graph.program import PRODUCTS, Graph, Op, OpKind

_SCATTER = "scatter"


@dataclass(frozen=True, slots=True)
class Summand:
    """What an addition reads, and the op that sums it; of several added ones, the first.

    Args:
        op: The op.
        order: By dimension of what is read, the dimension of the op's result that it is.
        addend_at: The addition of something that is no such sum to it, before; -1 for none.
    """

    op: int
    order: tuple[int, ...]
    addend_at: int = -1


@dataclass(frozen=True, slots=True)
class AddedSums:
    """Two such results, added.

    Args:
        first: The earlier operand of the addition.
        second: The later one.
    """

    first: Summand
    second: Summand


def added_sums(graph: Graph) -> tuple[AddedSums, ...]:
    """Every addition of two sums that nothing else reads, in program order.

    Products are added to products and scatters to scatters. On the way to the addition, dimensions
    may be reordered. A scatter and what is added to it are one: the compiler scatters into that.
    """
    return tuple(_added_sums(graph))


def _added_sums(graph: Graph) -> Iterator[AddedSums]:
    readers = graph.consumers
    found: dict[int, Summand] = {}  # by value
    for op in graph.ops:
        if op.kind is not OpKind.COMPUTE or len(op.results) != 1:
            continue
        read = [
            found.get(value) if _is_only_read(graph, readers, value, op) else None
            for value in op.operands
        ]
        pair = _pair(graph, *read) if op.name == "add" and len(read) == 2 else None
        if pair is not None:
            yield pair
        made = _summand(graph, op, read) if pair is None else pair.first
        if made is not None:
            found[op.results[0]] = made


def _summand(graph: Graph, op: Op, read: Sequence[Summand | None]) -> Summand | None:
    """What an op makes, if it is a sum, or leads on to one."""
    if op.op_class in PRODUCTS or op.name == _SCATTER:
        return Summand(op.index, tuple(range(len(graph.values[op.results[0]].shape))))
    if op.name == "transpose" and read[0] is not None:
        return replace(read[0], order=_reordered(op, read[0].order))
    if op.name == "add":
        return _with_addend(graph, op, read)
    return None


def _is_only_read(graph: Graph, readers: list[list[int]], value: int, op: Op) -> bool:
    maker = graph.maker(value)
    return readers[value] == [op.index] and maker.region == op.region


def _pair(graph: Graph, first: Summand | None, second: Summand | None) -> AddedSums | None:
    """Sums of two different ops that are both products or both scatters."""
    if first is None or second is None or first is second:
        return None
    is_scatter = [graph.ops[one.op].name == _SCATTER for one in (first, second)]
    return AddedSums(first, second) if is_scatter[0] == is_scatter[1] else None


def _with_addend(graph: Graph, add: Op, read: Sequence[Summand | None]) -> Summand | None:
    """The scatter that an operand of an addition is, as it comes."""
    for value, one in zip(add.operands, read, strict=True):
        is_as_made = one is not None and graph.values[value].op == one.op
        if one is not None and is_as_made and graph.ops[one.op].name == _SCATTER:
            return replace(one, addend_at=add.index)
    return None


def _reordered(op: Op, order: tuple[int, ...]) -> tuple[int, ...]:
    assert op.rule is not None
    (source,), (target,) = op.rule.operands, op.rule.results
    return tuple(order[source.index(factors)] for factors in target)
