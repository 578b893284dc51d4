"""Look-ups of whole rows, and scatters of them."""

from __future__ import annotations

from autoshard.graph.program import Graph, Op, OpClass, OpKind


def takes_rows(graph: Graph, op: Op) -> bool:
    """Whether a gather or scatter leaves the last dimension of what it takes as it is."""
    is_lookup = op.op_class in (OpClass.GATHER, OpClass.SCATTER)
    if not is_lookup or op.kind is not OpKind.COMPUTE or op.rule is None or len(op.results) != 1:
        return False
    table, made = op.rule.operands[0], op.rule.results[0]
    shapes = [graph.values[value].shape for value in (op.operands[0], op.results[0])]
    if min(map(len, shapes)) < 2 or shapes[0][-1] != shapes[1][-1]:
        return False
    return bool(table[-1]) and table[-1] == made[-1]
