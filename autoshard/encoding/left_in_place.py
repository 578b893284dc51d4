"""Operands that no constraint can stand before: the partitioner does not move them alone."""

from __future__ import annotations

from autoshard.graph.dataflow import before_lowering
from autoshard.graph.program import Graph, Op, OpClass

_SUMS = frozenset({OpClass.MATMUL, OpClass.REDUCE})
_STACKS = frozenset({"concatenate", "reshape"})


def is_left_in_place(graph: Graph, op: Op, position: int) -> bool:
    """True of an operand that is read where it is made, whatever other ops read of it.

    So an equation drops the dimension that it sliced, stacks what the copies of its unrolled body
    make, or sums what it made (`igamma` does in the test of its loop, and `ragged_dot` multiplies
    the rows that it masks for each group). In a loop also what every run reads alike: compilers
    move it before the loop, and so does the loop as it begins.
    """
    value = op.operands[position]
    producer = graph.maker(value)
    if producer.name == "while" and len(producer.operands) == 1:
        is_inside = graph.region_of_read(op, position) != producer.region
        return is_inside and not graph.is_read_in_branch(op, position)
    if op.equation == "":
        return False
    if op.name in _STACKS and _is_stacked(op, producer):
        return True
    if op.equation != producer.equation:
        return False
    if op.op_class in _SUMS:
        makers = map(graph.maker, before_lowering(graph, op, value))
        return all(maker.equation == op.equation for maker in makers)
    return op.name == "reshape" and producer.name == "slice"


def is_within_equation(graph: Graph, op: Op, position: int) -> bool:
    """True of an operand that one equation makes and goes on with element by element.

    No constraint can stand between the two: what is looked up and filled where out of bounds, what
    a run of a loop takes of a stack and reshapes.
    """
    producer = graph.maker(op.operands[position])
    is_one = op.equation != "" and op.equation == producer.equation
    is_taken = op.name == "reshape" and producer.name == "dynamic_slice"
    return is_one and (is_taken or op.op_class is OpClass.ELEMENTWISE)


def _is_stacked(op: Op, producer: Op) -> bool:
    """True of an op that joins the results of an unrolled loop, all or some of its runs."""
    is_piece = producer.name == "while" or producer.name in _STACKS
    return producer.equation.startswith(f"{op.equation}.") or (
        is_piece and producer.equation == op.equation
    )
