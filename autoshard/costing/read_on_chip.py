"""What products find in memory on the chip when they run."""

from __future__ import annotations

from autoshard.graph.buffers import Buffers
from autoshard.graph.program import PRODUCTS, Graph, Op, OpKind


def brought_before(graph: Graph, buffers: Buffers, op: Op) -> tuple[bool, ...]:
    """Per operand, whether it can be brought onto the chip while other ops run.

    So it is with what a product reads of an argument of the program, as it is or as it is computed
    with the product, in a loop that leaves it unchanged too: it is there long before. All others
    read what is in memory.
    """
    if op.op_class not in PRODUCTS:
        return (False,) * len(op.operands)
    return tuple(_is_of_argument(graph, buffers, value) for value in op.operands)


def _is_of_argument(graph: Graph, buffers: Buffers, value: int) -> bool:
    maker = graph.ops[graph.values[value].op]
    while len(maker.operands) == 1 and (
        maker.kind is not OpKind.COMPUTE or not buffers.is_stored[value]
    ):
        value = maker.operands[0]
        maker = graph.ops[graph.values[value].op]
    return maker.kind is OpKind.ARGUMENT
