"""Look-ups of whole rows, and scatters of them."""

from __future__ import annotations

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
