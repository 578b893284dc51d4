"""Values of which every element is one constant: compilers fill them in wherever they are read."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from autoshard.graph.op_traits import is_constraint, is_elementwise
from autoshard.graph.program import Graph, Op, OpKind

_KEEP_ELEMENTS = frozenset(
    """all_gather all_reduce broadcast_in_dim copy reduce reduce_scatter reshape reverse
    transpose""".split()
)


def splats(graph: Graph) -> Set[int]:
    """Values that a scalar constant fills, whatever constraints stand in between.

    Sums of them are such too, across devices as well. What an op that exchanges borders makes of
    them is none: it is partitioned before constants are folded.

    Source: openxla/xla, `algebraic_simplifier.cc`, `HandleAllGather`; `all_reduce_simplifier.cc`.
    """
    found: set[int] = set()
    for op in graph.ops:
        is_scalar = op.name == "constant" and not graph.values[op.results[0]].shape
        reads = (is_filled(graph, op, place, found) for place in range(len(op.operands)))
        if is_scalar or (_keeps(op) and op.operands and all(reads)):
            found.update(op.results)
    return found


def is_filled(graph: Graph, op: Op, position: int, filled: Set[int]) -> bool:
    """True for an operand that a constant fills, as far as compilers know where it is read.

    What a branch reads from outside is an operand of it like any other.
    """
    return op.operands[position] in filled and not graph.is_read_in_branch(op, position)


def without_folded_collectives(graph: Graph) -> Graph:
    """The same without collectives of a `shard_map` body whose results one constant fills."""
    filled = splats(graph)
    ops = (
        replace(op, collective=None) if op.collective and filled >= set(op.results) else op
        for op in graph.ops
    )
    return replace(graph, ops=tuple(ops))


def _keeps(op: Op) -> bool:
    if op.kind is OpKind.FREE:
        return op.name != "slice"
    is_work = op.kind is OpKind.COMPUTE and op.name in _KEEP_ELEMENTS
    is_border = op.kind in (OpKind.ENTER_MANUAL, OpKind.LEAVE_MANUAL)
    return is_work or is_border or is_constraint(op) or is_elementwise(op)
