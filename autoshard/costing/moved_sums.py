"""Reductions that read what devices move on its way from a product, and so do not run with it."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import NamedTuple

from autoshard.graph.buffers import Buffers
from autoshard.graph.program import Graph, Op, OpClass, OpKind

_ON_THE_WAY = frozenset({OpClass.ELEMENTWISE, OpClass.COPY, OpClass.NOTHING})


class Summed(NamedTuple):
    """What is read and summed on all devices together."""

    elements: int
    times: int


def moved_sums(graph: Graph, buffers: Buffers) -> dict[tuple[int, int], Summed]:
    """What reductions read again if it is moved to an operand, by op and position of that.

    These reductions run with a product. A value that is moved between the two is read where it
    comes out: a norm of gathered rows (libtpu 0.0.42, a Llama step on 64 chips of a v5e).

    Args:
        graph: The program.
        buffers: Its storage.
    """
    found: dict[tuple[int, int], Summed] = {}
    for product, reductions in buffers.summed_with.items():
        for index in reductions:
            elements = prod(graph.values[graph.ops[index].operands[0]].shape)
            for read in _way(graph, graph.ops[product], graph.ops[index]):
                found[read] = together((found.get(read, Summed(0, 0)), Summed(elements, 1)))
    return found


def together(sums: Iterable[Summed]) -> Summed:
    """Several, as one kernel makes those of the same tensors: it reads them once."""
    every = tuple(sums)
    return Summed(max(one.elements for one in every), sum(one.times for one in every))


def _way(graph: Graph, product: Op, reduction: Op) -> set[tuple[int, int]]:
    """Reads on the ways from a product to a reduction, element by element."""
    made = set(product.results)
    for op in graph.ops[product.index + 1 : reduction.index]:
        if op.region == product.region and _goes_on(op) and not made.isdisjoint(op.operands):
            made.update(op.results)
    found: set[tuple[int, int]] = set()
    left = [reduction]
    while left:
        op = left.pop()
        for position, value in enumerate(op.operands):
            if value in made and (op.index, position) not in found:
                found.add((op.index, position))
                maker = graph.maker(value)
                left += [maker] if maker is not product else []
    return found


def _goes_on(op: Op) -> bool:
    is_computed = op.kind is OpKind.COMPUTE and op.op_class in _ON_THE_WAY
    return is_computed or op.kind is OpKind.CONSTRAINT
