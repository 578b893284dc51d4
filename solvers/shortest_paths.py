"""Shortest paths between all pairs of a small dense graph."""

from __future__ import annotations

import numpy as np

from solvers.kernels import FloatArray, compiled
from solvers.problem import IntArray


def shortest_paths(lengths: FloatArray) -> tuple[FloatArray, IntArray]:
    """Lengths of the shortest paths between all nodes, and how to walk them.

    Of equally short paths the one found first stays: nodes between come in by number.

    Args:
        lengths: float64[nodes, nodes]: of the edge from row to column; infinite for none.

    Returns:
        float64[nodes, nodes]: of the path from row to column, 0 on the diagonal; int64[nodes,
        nodes]: the node before the last on it, -1 where there is no path, or none is needed.

    Source: Floyd (1962), Algorithm 97: shortest path.
    """
    nodes = np.arange(len(lengths))
    found, before = lengths.copy(), np.where(np.isfinite(lengths), nodes[:, None], -1)
    found[nodes, nodes], before[nodes, nodes] = 0.0, -1
    _shorten(found, before)
    return found, before


@compiled
def _shorten(lengths: FloatArray, before: IntArray) -> None:
    """Takes each way over a third node that is shorter, third nodes one after another."""
    num_nodes = len(lengths)
    for middle in range(num_nodes):
        onward, last = lengths[middle], before[middle]
        for start in range(num_nodes):
            there = lengths[start, middle]
            if there == np.inf:
                continue
            own, own_before = lengths[start], before[start]
            for end in range(num_nodes):
                if there + onward[end] < own[end]:
                    own[end] = there + onward[end]
                    own_before[end] = last[end]
