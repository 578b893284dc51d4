"""The layout that a value is held to where it is made."""

from __future__ import annotations

from autoshard.encoding.encode import Decoded
from autoshard.graph.program import Graph, OpClass
from autoshard.layouts import Layout


def placed_layout(graph: Graph, decoded: Decoded, value: int) -> Layout:
    """The planned layout of a value; of what a scatter sums, the one in which it is summed.

    Asked for a sum that is cut further, the partitioner gathers the updates of a scatter instead of
    summing its partial results. Asked for the sum and then for the cut, it sums, and compilers make
    a reduce-scatter of the two (seen with libtpu 0.0.42 for a v5e; a gradient of an embedding).
    """
    op = graph.ops[graph.values[value].op]
    candidate = decoded.candidates.get(op.index)
    if candidate is not None and op.op_class is OpClass.SCATTER and candidate.scattered:
        return candidate.partial
    return decoded.layouts[value]
