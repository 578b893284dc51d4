"""Look-ups of whole rows, and scatters of them."""

from __future__ import annotations

from collections.abc import Set

from autoshard.graph.program import Graph, Op, OpClass, OpKind


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

    Args:
        graph: The program.
        updates: Ops that make new states, which lie as their arguments do.
    """
    found: set[int] = set()
    for op in graph.ops:
        if takes_rows(graph, op):
            found.update(op.results)
            found.update(op.operands[2:] if op.op_class is OpClass.SCATTER else ())
    num_found = 0
    while len(found) > num_found:
        num_found = len(found)
        for op in (*graph.ops, *reversed(graph.ops)):
            is_beside = op.op_class is OpClass.ELEMENTWISE and op.index not in updates
            values = (*op.operands, *op.results)
            known = next((value for value in values if value in found), None)
            if is_beside and known is not None:
                shape = graph.values[known].shape
                found.update(value for value in values if graph.values[value].shape == shape)
    return frozenset(v for v in found if graph.maker(v).kind is not OpKind.ARGUMENT)
