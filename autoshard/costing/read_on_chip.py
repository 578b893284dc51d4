"""What products find in memory on the chip when they run."""

from __future__ import annotations

from autoshard.graph.buffers import Buffers
from autoshard.graph.dataflow import source_of
from autoshard.graph.program import PRODUCTS, Graph, Op, OpKind


def brought_before(graph: Graph, buffers: Buffers, op: Op) -> tuple[bool, ...]:
    """Per operand, whether it can be brought onto the chip while other ops run.

    So it is with what a product reads of an argument of the program, as it is or as it is computed
    with the product, in a loop that leaves it unchanged too: it is there long before. All others
    read what is in memory.
    """
    if op.op_class not in PRODUCTS:
        return (False,) * len(op.operands)
    return tuple(_argument(graph, buffers, value) is not None for value in op.operands)


def brought_arguments(graph: Graph, buffers: Buffers) -> dict[int, list[int]]:
    """The products that read each argument, as it is or as it is computed with them, in order."""
    found: dict[int, list[int]] = {}
    for op in graph.ops:
        for value in op.operands if op.op_class in PRODUCTS else ():
            argument = _argument(graph, buffers, value)
            if argument is not None:
                found.setdefault(argument, []).append(op.index)
    return found


def _argument(graph: Graph, buffers: Buffers, value: int) -> int | None:
    """The argument of the program that a product reads as this value, if it does."""

    def passes(op: Op, made: int) -> bool:
        is_handed_on = op.kind is not OpKind.COMPUTE or not buffers.is_stored[made]
        return len(op.operands) == 1 and is_handed_on

    source = source_of(graph, value, passes)
    return source if graph.maker(source).kind is OpKind.ARGUMENT else None
