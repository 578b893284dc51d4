"""Look-ups of whole rows, and scatters of them."""

from __future__ import annotations

from collections.abc import Set

from autoshard.graph.dataflow import spread
from autoshard.graph.program import PRODUCTS, Graph, Op, OpClass, OpKind


def takes_rows(graph: Graph, op: Op) -> bool:
    """True where a gather or scatter leaves the last dimension of what it takes as it is."""
    is_lookup = op.op_class in (OpClass.GATHER, OpClass.SCATTER)
    if not is_lookup or op.kind is not OpKind.COMPUTE or op.rule is None or len(op.results) != 1:
        return False
    table, taken = op.rule.operands[0], op.rule.results[0]
    value = op.results[0]
    if op.op_class is OpClass.SCATTER:  # its result is as the table is, whatever is added
        taken, value = op.rule.operands[-1], op.operands[-1]
    shapes = [graph.values[one].shape for one in (op.operands[0], value)]
    if min(map(len, shapes)) < 2 or shapes[0][-1] != shapes[1][-1]:
        return False
    return bool(table[-1]) and table[-1] == taken[-1]


def row_values(graph: Graph, updates: Set[int]) -> frozenset[int]:
    """Values that lie row by row: looked up or scattered, or element by element beside these.

    What lies element by element beside the result of a matmul is in tiles that pad least: look-ups
    copy it.

    Source: layouts that libtpu 0.0.52 gives a graph attention step for a v5e, whose edges have
        rows of 32 elements.
    """
    looked_up: set[int] = set()
    for op in graph.ops:
        if takes_rows(graph, op):
            looked_up.update(op.results)
            looked_up.update(op.operands[2:] if op.op_class is OpClass.SCATTER else ())
    made = (op for op in graph.ops if op.kind is OpKind.COMPUTE and op.op_class in PRODUCTS)
    rows = looked_up | _beside(graph, looked_up, updates)
    rows -= _beside(graph, {value for op in made for value in op.results}, updates)
    return frozenset(v for v in rows if graph.maker(v).kind is not OpKind.ARGUMENT)


def _beside(graph: Graph, values: Set[int], updates: Set[int]) -> Set[int]:
    """All that element-wise ops read or make beside the values or beside other such."""

    def passes(op: Op) -> bool:
        return op.op_class is OpClass.ELEMENTWISE and op.index not in updates

    def reaches(_: Op, value: int, other: int) -> bool:
        return graph.values[other].shape == graph.values[value].shape

    return spread(graph, sorted(values), passes, reaches).keys()
