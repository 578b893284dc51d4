"""Operands that no constraint can stand before: the partitioner does not move them alone."""

from __future__ import annotations

from autoshard.graph.dataflow import before_lowering
from autoshard.graph.program import Graph, Op, OpClass

_SUMS = frozenset({OpClass.MATMUL, OpClass.REDUCE})


def is_left_in_place(graph: Graph, op: Op, value: int) -> bool:
    """True of an operand that is read where it is made, whatever other ops read of it.

    So an equation drops the dimension that it sliced, or sums what it made (`igamma` does in the
    test of its loop, and `ragged_dot` multiplies the rows that it masks for each group).
    """
    producer = graph.maker(value)
    if op.equation == "" or op.equation != producer.equation:
        return False
    if op.op_class in _SUMS:
        makers = map(graph.maker, before_lowering(graph, op, value))
        return all(maker.equation == op.equation for maker in makers)
    return op.name == "reshape" and producer.name == "slice"
