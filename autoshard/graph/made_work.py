"""Arithmetic of what is made of constants: random bits, masks, positions."""

from __future__ import annotations

from autoshard.graph.dataflow import trace_back
from autoshard.graph.program import Graph, Op, OpKind


def made_operations(graph: Graph, op: Op) -> float:
    """Operations in which an op makes the constants that it reads, on all devices together.

    Every reader makes them again.

    Source: dropout, uniform and normal numbers of threefry keys, by libtpu 0.0.52 for a v5e and a
        v5p: 36 cycles for 1,024 random words, which are some 130 operations each.
    """
    if all(graph.maker(value).kind is not OpKind.FREE for value in op.operands):
        return 0.0
    made = trace_back(graph, op.operands, lambda maker, _: maker.kind is OpKind.FREE).inner
    return sum(graph.maker(value).flops for value in made)
