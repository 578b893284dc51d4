"""Operands that no constraint can stand before: the partitioner does not move them alone."""

from __future__ import annotations

from autoshard.graph.dataflow import before_lowering
from autoshard.graph.program import Graph, Op, OpClass


def is_left_in_place(graph: Graph, op: Op, value: int) -> bool:
    """True of an operand that is read where it is made, whatever other ops read of it.

    So an equation drops the dimension that it sliced, or reduces what it made (`igamma` does in the
    test of its loop).
    """
    producer = graph.maker(value)
    if op.equation == "" or op.equation != producer.equation:
        return False
    if op.op_class is OpClass.REDUCE:
        makers = map(graph.maker, before_lowering(graph, op, value))
        return all(maker.equation == op.equation for maker in makers)
    return op.name == "reshape" and producer.name == "slice"
