"""Shortest paths are those that SciPy finds, with the same choice among equals."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array
from scipy.sparse.csgraph import floyd_warshall

from solvers import shortest_paths


@given(num_nodes=st.integers(1, 12), share=st.floats(0, 1), seed=st.integers(0, 2**32 - 1))
def test_paths_are_those_of_scipy_where_several_are_as_short(
    num_nodes: int, share: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 5, (num_nodes, num_nodes)).astype(np.float64)
    has_edge = rng.random((num_nodes, num_nodes)) < share
    np.fill_diagonal(has_edge, False)
    ends = np.nonzero(has_edge)
    graph = csr_array((lengths[has_edge], ends), lengths.shape)
    found, before = shortest_paths(np.where(has_edge, lengths, np.inf))
    expected, predecessors = floyd_warshall(graph, return_predecessors=True)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(before, np.maximum(predecessors, -1))


def test_a_way_over_a_third_node_is_walked_backwards_from_its_end() -> None:
    none = np.inf
    found, before = shortest_paths(np.array([[0, 1, 5], [none, 0, 1], [none, none, 0]]))
    np.testing.assert_array_equal(found, [[0, 1, 2], [none, 0, 1], [none, none, 0]])
    np.testing.assert_array_equal(before, [[-1, 0, 1], [-1, -1, 1], [-1, -1, -1]])
