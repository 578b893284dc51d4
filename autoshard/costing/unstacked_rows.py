"""What is unstacked of what a product made, and so copied out of its rows."""

from __future__ import annotations

from autoshard.graph.buffers import Buffers
from autoshard.graph.program import Graph, Op


def is_unstacked(graph: Graph, buffers: Buffers, op: Op) -> bool:
    """Whether an op takes one of the rows that lie together in a tile.

    That is a slice of one along the dimension before the last, of what is written in the place of a
    product.
    """
    if op.name != "slice" or op.operands[0] not in buffers.with_products:
        return False
    whole, piece = graph.values[op.operands[0]].shape, graph.values[op.results[0]].shape
    if len(whole) < 3 or whole[-2] == 1:
        return False
    return piece == (*whole[:-2], 1, whole[-1])
