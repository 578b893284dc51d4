from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from solvers import Problem, evaluate
from solvers.elimination import EliminationCache, eliminate, order_elimination
from solvers.engines.brute_force import BruteForce
from solvers.engines.protocol import Request
from solvers.presolve import presolve
from solvers.saturating import FORBIDDEN_FROM
from tests.solvers.instances import small_problems


@settings(max_examples=150, deadline=None)
@given(problem=small_problems(has_memory=False))
def test_eliminating_every_node_gives_the_optimum_and_choices_that_cost_it(
    problem: Problem,
) -> None:
    small = presolve(problem, rules=())
    if small.is_infeasible:
        return
    tables = {(edge.u, edge.v): edge.costs for edge in small.problem.edges}
    order = order_elimination([len(c) for c in small.problem.node_costs], tables)
    assert order.kept == ()
    done = eliminate(order, small.problem.node_costs, tables)
    best = BruteForce().solve(problem, Request()).choices
    if best is None:
        assert done.constant >= FORBIDDEN_FROM
        return
    choices = done.complete(np.zeros(small.problem.num_nodes, dtype=np.int64))
    expected = evaluate(problem, best).cost
    assert done.constant + small.constant == expected
    assert evaluate(problem, small.restore(choices.tolist())).cost == expected


def test_kept_nodes_stay_and_tables_over_them_carry_the_rest() -> None:
    rng = np.random.default_rng(0)
    costs = [rng.integers(0, 9, 3) for _ in range(4)]
    tables = {pair: rng.integers(0, 9, (3, 3)) for pair in [(0, 1), (1, 2), (2, 3), (0, 3), (1, 3)]}
    order = order_elimination([3] * 4, tables, keep=frozenset({0, 2}))
    done = eliminate(order, costs, tables)
    assert order.kept == (0, 2)
    problem_cost = {}
    for a in range(3):
        for c in range(3):
            choices = done.complete(np.array([a, 0, c, 0]))
            claimed = done.constant + sum(
                int(factor.table[tuple(choices[node] for node in factor.scope)])
                for factor in done.factors
            )
            problem_cost[a, c] = claimed
            paid = sum(int(costs[i][choices[i]]) for i in range(4))
            paid += sum(int(t[choices[u], choices[v]]) for (u, v), t in tables.items())
            assert paid == claimed
    assert len(problem_cost) == 9


def test_a_node_whose_table_would_be_too_large_stays() -> None:
    star = [(0, i) for i in range(1, 5)]
    clique = [(u, v) for u in range(5) for v in range(u)]
    assert order_elimination([10] * 5, star, largest_table=10).kept == ()
    assert len(order_elimination([10] * 5, clique, largest_table=100).kept) == 5


def test_no_more_additions_are_made_than_allowed() -> None:
    chain = [(i, i + 1) for i in range(20)]
    order = order_elimination([4] * 21, chain, largest_work=100)
    assert order.num_additions <= 100
    assert order.kept


def test_equal_layers_are_computed_once() -> None:
    table = np.arange(16).reshape(4, 4)
    costs = np.zeros(4, dtype=np.int64)
    cache = EliminationCache()
    tables = {(i, i + 1): table for i in range(50)}
    order = order_elimination([4] * 51, tables)
    done = eliminate(order, [costs] * 51, tables, cache)
    made = {id(factor.table) for factors in done.factors_by_step for factor in factors}
    assert len(made) < 60
    assert done.constant == 0


@pytest.mark.parametrize("num_leaves", [3, 200])
def test_hubs_add_up_without_overflow(num_leaves: int) -> None:
    forbidden = np.full((2, 2), FORBIDDEN_FROM * 2)
    forbidden[0, 0] = 1
    tables = {(0, i): forbidden for i in range(1, num_leaves + 1)}
    costs = [np.zeros(2, dtype=np.int64)] * (num_leaves + 1)
    order = order_elimination([2] * (num_leaves + 1), tables, keep=frozenset({0}))
    assert eliminate(order, costs, tables).constant == 0
    whole = order_elimination([2] * (num_leaves + 1), tables)
    assert eliminate(whole, costs, tables).constant == num_leaves
