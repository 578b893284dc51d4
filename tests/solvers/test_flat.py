from __future__ import annotations

import gc
import weakref

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers import Problem, evaluate
from solvers.flat import Flat, SharedArrays
from solvers.problem import IntArray
from tests.solvers.instances import small_problems


def test_entries_of_small_and_large_arrays_are_read_at_once() -> None:
    small, large = np.array([3, 5]), np.arange(10_000).reshape(100, 100)
    arrays = SharedArrays.of([large, small, large, small])
    assert arrays.at(np.array([9_999, 1, 7, 0])).tolist() == [9_999, 5, 7, 3]


def test_an_array_that_several_share_is_looked_at_once() -> None:
    small, other = np.array([3, 5]), np.array([3, 5])
    seen: list[IntArray] = []

    def turn(array: IntArray) -> int:
        seen.append(array)
        return len(seen)

    assert SharedArrays.of([small, other, small]).of_each(turn).tolist() == [1, 2, 1]


@settings(max_examples=100, deadline=None)
@given(problem=small_problems(), seed=st.integers(0, 1000))
def test_costs_and_peaks_are_those_of_one_entry_after_another(problem: Problem, seed: int) -> None:
    rng = np.random.default_rng(seed)
    choices = [int(rng.integers(len(costs))) for costs in problem.node_costs]
    cost = sum(int(own[at]) for own, at in zip(problem.node_costs, choices, strict=True))
    cost += sum(int(edge.costs[choices[edge.u], choices[edge.v]]) for edge in problem.edges)
    held = [(t.start, t.stop, int(t.usage[choices[t.node]])) for t in problem.node_memory]
    for term in problem.edge_memory:
        edge = problem.edges[term.edge]
        held.append((term.start, term.stop, int(term.usage[choices[edge.u], choices[edge.v]])))
    times = sorted(start for start, *_ in held)
    peaks = [sum(own for start, stop, own in held if start <= time < stop) for time in times]
    found = evaluate(problem, choices)
    assert (found.cost, found.peak) == (cost, max(peaks, default=0))
    assert found.peak == 0 or found.peak_time == times[peaks.index(found.peak)]


def test_flat_arrays_are_made_once_and_go_with_their_problem() -> None:
    problem = Problem((np.array([1, 2]),))
    flat = Flat.of(problem)
    assert Flat.of(problem) is flat
    alive = weakref.ref(flat)
    del problem, flat
    gc.collect()
    assert alive() is None
