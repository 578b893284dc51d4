"""Values of which every element is one constant: compilers fill them in wherever they are read."""

from __future__ import annotations

from collections.abc import Set

from autoshard.graph.op_traits import is_constraint, is_elementwise
from autoshard.graph.program import Graph, Op, OpKind

_KEEP_ELEMENTS = frozenset({"broadcast_in_dim", "copy", "reshape", "reverse", "transpose"})


def splats(graph: Graph) -> Set[int]:
    """Values that a scalar constant fills, whatever constraints stand in between.

    What an op that exchanges borders or adds up makes of them is none: it is partitioned before
    constants are folded.

    Source: openxla/xla, `algebraic_simplifier.cc`, `HandleAllGather`, `HandleAllToAll`.
    """
    found: set[int] = set()
    for op in graph.ops:
        is_scalar = op.name == "constant" and not graph.values[op.results[0]].shape
        if is_scalar or (_keeps(op) and op.operands and found.issuperset(op.operands)):
            found.update(op.results)
    return found


def _keeps(op: Op) -> bool:
    if op.kind is OpKind.FREE:
        return op.name != "slice"
    is_work = op.kind is OpKind.COMPUTE and op.name in _KEEP_ELEMENTS
    return is_work or is_constraint(op) or is_elementwise(op)
