from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers import Problem, evaluate
from solvers.engines.protocol import Request
from solvers.problem import IntArray
from solvers.recombination import recombine
from tests.solvers.scalable.reduced_problems import lane_problems, random_choices


def best_of_combinations(problem: Problem, answers: list[IntArray]) -> int | None:
    """The least cost of all allowed choices made of those of the answers; None without any."""
    options = [sorted({int(answer[node]) for answer in answers}) for node in range(len(answers[0]))]
    found = [evaluate(problem, choices) for choices in itertools.product(*options)]
    return min((one.cost for one in found if one.is_allowed), default=None)


@settings(max_examples=40, deadline=None)
@given(problem=lane_problems(), seeds=st.lists(st.integers(0, 99), min_size=1, max_size=3))
def test_the_cheapest_combination_of_answers_is_found(problem: Problem, seeds: list[int]) -> None:
    answers = [random_choices(problem, seed) for seed in seeds]
    found = recombine(problem, answers, Request())
    best = best_of_combinations(problem, answers)
    assert (found is None) == (best is None)
    if found is not None:
        assert evaluate(problem, found.tolist()).is_allowed
        assert evaluate(problem, found.tolist()).cost == best
        assert all(any(choice == a[node] for a in answers) for node, choice in enumerate(found))


def test_nothing_is_recombined_once_time_is_up() -> None:
    problem = Problem(node_costs=(np.array([1, 2]),))
    assert recombine(problem, [np.array([0])], Request(stop=lambda: True)) is None
