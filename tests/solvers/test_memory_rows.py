from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers import NodeMemory, Problem, evaluate
from solvers.memory_rows import RowUse, compress_memory, priced, rows_to_add
from solvers.problem import IntArray
from tests.solvers.instances import small_problems


def ints(*values: int) -> IntArray:
    return np.array(values, dtype=np.int64)


@settings(max_examples=150, deadline=None)
@given(problem=small_problems(), seed=st.integers(0, 1000))
def test_rows_forbid_exactly_what_the_limit_forbids(problem: Problem, seed: int) -> None:
    rng = np.random.default_rng(seed)
    compressed, row_times = compress_memory(problem)
    choices = [int(rng.integers(len(costs))) for costs in problem.node_costs]
    assert problem.memory_limit is not None
    peak = evaluate(problem, choices).peak
    held = RowUse(compressed, len(row_times)).held(choices)
    assert (peak > problem.memory_limit) == bool((held > problem.memory_limit).any())
    unlimited = replace(problem, memory_limit=None)
    for row, time in enumerate(row_times):
        assert held[row] == _held_at(unlimited, choices, time)


def _held_at(problem: Problem, choices: list[int], time: int) -> int:
    held = sum(
        int(term.usage[choices[term.node]])
        for term in problem.node_memory
        if term.start <= time < term.stop
    )
    for term in problem.edge_memory:
        edge = problem.edges[term.edge]
        if term.start <= time < term.stop:
            held += int(term.usage[choices[edge.u], choices[edge.v]])
    return held


def test_only_times_at_which_something_stops_before_another_start_become_rows() -> None:
    memory = (
        NodeMemory(0, 0, 10, ints(5)),
        NodeMemory(0, 2, 6, ints(5)),
        NodeMemory(0, 4, 8, ints(5)),
        NodeMemory(0, 8, 9, ints(5)),
    )
    problem = Problem((ints(0),), node_memory=memory, memory_limit=1)
    assert compress_memory(problem)[1] == (4, 8)


def test_a_time_at_which_even_the_most_fits_becomes_no_row() -> None:
    problem = Problem((ints(0, 0),), node_memory=(NodeMemory(0, 0, 1, ints(5, 7)),), memory_limit=7)
    assert compress_memory(problem)[1] == ()
    assert compress_memory(replace(problem, memory_limit=6))[1] == (0,)


@settings(max_examples=100, deadline=None)
@given(problem=small_problems(), price=st.floats(1e-3, 1e3))
def test_prices_never_charge_more_than_price_times_use(problem: Problem, price: float) -> None:
    compressed, row_times = compress_memory(problem)
    prices = {row: price * (row + 1) for row in range(len(row_times))}
    by_node, by_edge = priced(compressed, prices, len(row_times))
    choices = [0] * problem.num_nodes
    held = RowUse(compressed, len(row_times)).held(choices)
    charged = sum(int(costs[0]) for costs in by_node.values())
    charged += sum(int(costs[0, 0]) for costs in by_edge.values())
    exact = sum(p * int(held[row]) for row, p in prices.items())
    num_terms = len(compressed.node_memory) + len(compressed.edge_memory)
    assert exact * (1 - 1e-9) - num_terms <= charged <= exact * (1 + 1e-12)


def test_the_worst_row_of_each_hill_is_added_first() -> None:
    held = ints(1, 8, 9, 8, 2, 7, 2)
    assert rows_to_add(held, 5, []) == [2, 5]
    assert rows_to_add(held, 5, [2]) == [1, 3, 5]
    assert rows_to_add(held, 9, []) == []
