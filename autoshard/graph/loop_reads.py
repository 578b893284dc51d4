"""What products in loops read unchanged in every run, and all of it."""

from __future__ import annotations

from autoshard.graph.op_traits import TRANSPARENT
from autoshard.graph.program import PRODUCTS, Graph, OpKind

_HAND_ON = TRANSPARENT | {"while"}


def read_whole(graph: Graph) -> frozenset[int]:
    """Ops with which values enter a loop that only its products read, and no slice of them.

    In every run they read the same; converted, or with dimensions reordered.
    """
    readers = graph.consumers
    whole: set[int] = set()
    for op in reversed(graph.ops):
        hands_on = op.name in _HAND_ON and len(op.operands) == 1 and len(op.results) == 1
        if not hands_on or not readers[op.results[0]]:
            continue
        after = [graph.ops[index] for index in readers[op.results[0]]]
        if all(one.op_class in PRODUCTS or one.index in whole for one in after):
            whole.add(op.index)
    joins = (graph.ops[index] for index in whole)
    return frozenset(op.index for op in joins if op.kind is OpKind.JOIN and op.name == "while")
