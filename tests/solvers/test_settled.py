"""What is left once most nodes have one choice costs what the original does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from solvers import FORBIDDEN, Edge, Problem, Status, evaluate, settle, solve
from solvers.problem import LARGEST_ALLOWED_COST
from tests.solvers.instances import small_problems


@given(problem=small_problems(), seed=st.integers(0, 2**32 - 1), share=st.floats(0, 1))
def test_the_best_that_is_left_is_the_best_of_the_choices_kept(
    problem: Problem, seed: int, share: float
) -> None:
    rng = np.random.default_rng(seed)
    keep = []
    for costs in problem.node_costs:
        own = rng.random(len(costs)) < share
        own[rng.integers(len(costs))] = True
        keep.append(own)
    masked = tuple(
        np.where(own, costs, FORBIDDEN) for own, costs in zip(keep, problem.node_costs, strict=True)
    )
    whole = solve(
        replace(
            problem,
            node_costs=masked,
            node_memory=(),
            edge_memory=(),
            memory_limit=None,
            memory_limits=(),
        )
    )
    settled = settle(problem, keep)
    found = solve(settled.problem)
    assert found.status is whole.status
    if found.choices is not None:
        choices = settled.restore(found.choices)
        assert all(own[choice] for own, choice in zip(keep, choices, strict=True))
        assert evaluate(problem, choices).cost == found.cost == whole.cost


def test_nodes_of_one_choice_are_gone() -> None:
    table = np.array([[1, 2], [3, 4]])
    problem = Problem((np.array([5, 6]),) * 3, (Edge(0, 1, table), Edge(1, 2, table)))
    settled = settle(
        problem, [np.array([False, True]), np.array([True] * 2), np.array([True, False])]
    )
    assert [list(costs) for costs in settled.problem.node_costs] == [
        [5 + 3 + 1, 6 + 4 + 3],
        [6 + 5],
    ]
    assert settled.problem.edges == ()
    assert settled.restore((1, 0)) == (1, 1, 0)


@pytest.mark.parametrize("num_pairs", [1, 200])
def test_forbidden_pairs_stay_forbidden_however_many(num_pairs: int) -> None:
    table = np.array([[FORBIDDEN, FORBIDDEN]])
    nodes = (np.array([0, 0]), *[np.array([0])] * num_pairs)
    edges = tuple(Edge(node, 0, table) for node in range(1, num_pairs + 1))
    settled = settle(Problem(nodes, edges), [np.ones(len(costs), bool) for costs in nodes])
    assert solve(settled.problem).status is Status.INFEASIBLE


def test_many_long_costs_that_are_paid_at_one_node_stay_allowed() -> None:
    table = np.array([[LARGEST_ALLOWED_COST - 1, 0]])
    nodes = (np.array([0, 1]), *[np.array([0])] * 3)
    edges = tuple(Edge(node, 0, table) for node in range(1, 4))
    settled = settle(Problem(nodes, edges), [np.ones(len(costs), bool) for costs in nodes])
    found = solve(settled.problem)
    assert found.choices is not None
    assert settled.restore(found.choices)[0] == 1
