"""Which dimensions of a program are the same: heads, width, batch, wherever they turn up."""

from __future__ import annotations

from itertools import accumulate, pairwise

from autoshard.graph.program import Graph, OpKind
from autoshard.graph.rule import identity_rule

DimClasses = tuple[tuple[int, ...], ...]
"""Per value, per dimension, a number that all dimensions of one class share."""


def dimension_classes(graph: Graph) -> DimClasses:
    """Sort all dimensions into classes: cutting one cuts the others of its class along.

    Two dimensions are of one class where a rule gives them the same factor. Where a dimension has
    several (a merge of heads and their width), it goes with the most major, which is cut first.
    Constants and fills join nothing: unrelated tensors may read one of them.

    Returns:
        Per value, per dimension, the number of its class.
    """
    starts = tuple(accumulate((len(value.shape) for value in graph.values), initial=0))
    parent = list(range(starts[-1]))

    def root(dim: int) -> int:
        while parent[dim] != dim:
            parent[dim] = parent[parent[dim]]
            dim = parent[dim]
        return dim

    fills: set[int] = set()
    for op in graph.ops:
        tensors = (*op.operands, *op.results)
        if op.kind is OpKind.FREE and all(
            value in fills or not graph.values[value].shape for value in op.operands
        ):
            fills.update(op.results)
        if op.rule is None:
            if op.kind is not OpKind.FREE or len({graph.values[v].shape for v in tensors}) != 1:
                continue
            rule = identity_rule(graph.values[op.results[0]].shape, len(tensors) - 1)
        else:
            rule = op.rule
        first: dict[int, int] = {}
        for value, majors in zip(tensors, rule.majors, strict=True):
            if value in fills:
                continue
            for dim, factor in enumerate(majors):
                if factor is not None:
                    place = root(starts[value] + dim)
                    parent[place] = root(first.setdefault(factor, place))
    return tuple(tuple(root(dim) for dim in range(start, stop)) for start, stop in pairwise(starts))
