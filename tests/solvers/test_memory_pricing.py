from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings

from solvers import FORBIDDEN, Edge, Problem, evaluate
from solvers.elimination import order_elimination
from solvers.engines.brute_force import BruteForce
from solvers.engines.protocol import Request
from solvers.memory_pricing import PriceSearch, resolution_factor, with_costs_times
from solvers.presolve import presolve
from solvers.price_oracles import AscentOracle, EliminationOracle, Oracle
from solvers.within_memory import LeastPeak, zero_costs
from tests.solvers.instances import small_problems


def by_elimination(problem: Problem) -> Oracle:
    pairs = [(edge.u, edge.v) for edge in problem.edges]
    return EliminationOracle(
        problem, order_elimination([len(costs) for costs in problem.node_costs], pairs)
    )


def by_ascent(problem: Problem) -> Oracle:
    return AscentOracle(problem)


@pytest.mark.parametrize("make", [by_elimination, by_ascent])
@settings(max_examples=40, deadline=None)
@given(problem=small_problems())
def test_prices_prove_bounds_and_find_answers_that_fit(
    make: Callable[[Problem], Oracle], problem: Problem
) -> None:
    small = presolve(problem)
    best = BruteForce().solve(small.problem, Request()).choices
    if small.is_infeasible or small.problem.memory_limit is None or best is None:
        return
    factor = resolution_factor(small.problem)
    scaled = with_costs_times(small.problem, factor)
    search = PriceSearch(scaled, len(small.row_times), make(scaled))
    search.run(most_rounds=20)
    assert search.lower_bound <= factor * evaluate(small.problem, best).cost
    if search.choices is not None:
        found = evaluate(small.problem, search.choices.tolist())
        assert found.is_allowed
        assert factor * found.cost == search.cost


def test_where_no_limit_is_left_no_price_of_it_is_added() -> None:
    """Presolve drops the limit of a problem whose every choice fits; a bound is asked for yet."""
    problem = Problem((np.array([1, 2]), np.array([3, 1])))
    search = PriceSearch(problem, 0, AscentOracle(problem))
    assert search.price_of_limit() == 0


@settings(max_examples=60, deadline=None)
@given(problem=small_problems())
def test_the_least_peak_bound_is_never_above_a_peak_and_its_choices_are_real(
    problem: Problem,
) -> None:
    small = presolve(problem, rules=())
    if small.problem.memory_limit is None:
        return
    true = BruteForce().solve(small.problem, Request())
    search = LeastPeak(small.problem, len(small.row_times), None, by_elimination)
    search.run()
    if true.least_peak_choices is None:
        assert search.is_infeasible or search.choices is None
        return
    least = evaluate(small.problem, true.least_peak_choices).peak
    assert search.lower_bound <= least
    if search.choices is not None:
        found = evaluate(zero_costs(small.problem), search.choices)
        assert found.cost == 0
        assert least <= found.peak == search.peak


def test_scaling_costs_keeps_shared_tables_shared() -> None:
    table = np.array([[0, 1], [FORBIDDEN, 3]])
    problem = Problem((np.array([1, 2]),) * 3, (Edge(0, 1, table), Edge(1, 2, table)))
    scaled = with_costs_times(problem, 4)
    assert scaled.edges[0].costs is scaled.edges[1].costs
    assert scaled.edges[0].costs.tolist() == [[0, 4], [FORBIDDEN, 12]]
    assert scaled.node_costs[0].tolist() == [4, 8]
