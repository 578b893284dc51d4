"""Several answers: each the best of those that differ enough from the ones before it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from solvers import NodeMemory, Problem, ProblemError, Status, evaluate, solve_k_best
from tests.solvers.instances import random_problem


def share_apart(one: Sequence[int], other: Sequence[int], weights: Sequence[int]) -> float:
    return sum(w for a, b, w in zip(one, other, weights, strict=True) if a != b) / sum(weights)


@given(
    seed=st.integers(0, 10_000),
    share=st.sampled_from([0.01, 0.3, 0.5, 1.0]),
    data=st.data(),
)
def test_each_answer_costs_what_brute_force_finds_best_among_those_apart_from_the_others(
    seed: int, share: float, data: st.DataObject
) -> None:
    problem = random_problem(seed, most_nodes=5)
    weights = data.draw(
        st.lists(st.integers(0, 5), min_size=problem.num_nodes, max_size=problem.num_nodes).filter(
            any
        )
    )
    found = solve_k_best(problem, 4, weights=weights, least_share=share, most_excess=math.inf)
    allowed = [
        choices
        for choices in itertools.product(*(range(len(c)) for c in problem.node_costs))
        if evaluate(problem, choices).is_allowed
    ]
    before: list[tuple[int, ...]] = []
    for result in found:
        assert result.choices is not None
        apart = [
            evaluate(problem, choices).cost
            for choices in allowed
            if all(share_apart(choices, one, weights) >= share for one in before)
        ]
        assert result.cost == evaluate(problem, result.choices).cost == min(apart)
        assert result.peak == evaluate(problem, result.choices).peak
        before.append(result.choices)
    left = [c for c in allowed if all(share_apart(c, one, weights) >= share for one in before)]
    assert len(found) == 4 or not left


def two_ways(*costs: int) -> Problem:
    return Problem(node_costs=(np.array(costs, dtype=np.int64), np.array([0, 0], dtype=np.int64)))


def test_an_answer_above_the_excess_ends_the_search() -> None:
    found = solve_k_best(
        two_ways(100, 102, 120), 3, weights=(1, 0), least_share=1.0, most_excess=0.1
    )
    assert [result.cost for result in found] == [100, 102]
    assert all(result.status is Status.OPTIMAL for result in found)


def test_answers_known_before_are_not_given_again_and_say_what_the_best_costs() -> None:
    found = solve_k_best(
        two_ways(100, 102, 120),
        3,
        weights=(1, 0),
        least_share=1.0,
        most_excess=0.1,
        known=[(0, 1)],
    )
    assert [result.choices and result.choices[0] for result in found] == [1]


def test_a_memory_limit_below_the_weights_stays_what_it_was() -> None:
    held = NodeMemory(0, 0, 3, np.array([9, 1, 1], dtype=np.int64))
    problem = Problem(
        node_costs=(np.array([0, 5, 6], dtype=np.int64),), node_memory=(held,), memory_limit=2
    )
    found = solve_k_best(problem, 3, weights=(1000,), least_share=0.5, most_excess=1.0)
    assert [result.choices for result in found] == [(1,), (2,)]


@pytest.mark.parametrize(
    ("weights", "share", "excess"),
    [
        ((0, 0), 0.5, 0.1),
        ((1,), 0.5, 0.1),
        ((1, -1), 0.5, 0.1),
        ((1, 1), 0.0, 0.1),
        ((1, 1), 1, -1),
    ],
)
def test_weights_and_shares_that_mean_nothing_are_refused(
    weights: tuple[int, ...], share: float, excess: float
) -> None:
    with pytest.raises(ProblemError):
        solve_k_best(two_ways(1, 2), 2, weights=weights, least_share=share, most_excess=excess)
