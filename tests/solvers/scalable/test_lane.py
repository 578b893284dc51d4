from __future__ import annotations

import time

import numpy as np
from hypothesis import given, settings

from solvers import NodeMemory, Problem, evaluate
from solvers.incumbent import Incumbent
from solvers.presolve import reduce_fully
from solvers.scalable import run_scalable
from tests.solvers.instances import LayeredShape, layered_problem
from tests.solvers.scalable.reduced_problems import best_cost, lane_problem, lane_problems


@settings(max_examples=40, deadline=None)
@given(problem=lane_problems())
def test_bound_optimum_and_cost_are_in_order_and_answers_are_real(problem: Problem) -> None:
    incumbent = Incumbent()
    run_scalable(problem, incumbent)
    cost, choices = incumbent.best()
    best = best_cost(problem)
    if best is None:
        assert choices is None
        return
    assert not incumbent.is_infeasible()
    assert incumbent.bound() <= best
    if choices is not None:
        found = evaluate(problem, choices)
        assert found.is_allowed
        assert found.cost == cost
        assert cost >= best


def test_small_problems_are_nearly_always_solved_to_the_optimum() -> None:
    solved = solvable = 0
    for seed in range(14):
        problem = lane_problem(seed)
        best = best_cost(problem)
        if best is None:
            continue
        incumbent = Incumbent()
        run_scalable(problem, incumbent)
        solvable += 1
        solved += incumbent.best()[0] == best
    assert solvable >= 5
    assert solved >= 0.9 * solvable


def test_what_cannot_fit_is_proven_infeasible() -> None:
    problem = Problem(
        node_costs=(np.zeros(2, dtype=np.int64),),
        node_memory=(NodeMemory(0, 0, 1, np.array([6, 7])),),
        memory_limit=5,
    )
    incumbent = Incumbent()
    run_scalable(problem, incumbent)
    assert incumbent.is_infeasible()


def test_a_large_problem_gets_an_answer_early_and_the_deadline_is_kept() -> None:
    free = layered_problem(LayeredShape(num_layers=6))
    cheapest = [int(costs.argmin()) for costs in free.node_costs]
    limit = evaluate(free, cheapest).peak * 9 // 10
    reduced = reduce_fully(layered_problem(LayeredShape(num_layers=6), memory_limit=limit))
    run_scalable(reduced.problem, Incumbent(deadline=time.monotonic() + 0.5))  # compiles
    begun = time.monotonic()
    first: list[float] = []
    incumbent = Incumbent(
        deadline=begun + 5.0,
        on_change=lambda _, cost, __: first.append(time.monotonic()) if cost is not None else None,
    )
    run_scalable(reduced.problem, incumbent)
    assert time.monotonic() - begun <= 5.0 * 1.02 + 0.1
    cost, choices = incumbent.best()
    assert choices is not None
    assert cost == evaluate(reduced.problem, choices).cost
    assert first[0] - begun <= 0.5
    assert incumbent.bound() <= cost


def test_without_a_deadline_one_seed_gives_one_cost() -> None:
    problem = reduce_fully(layered_problem(LayeredShape(num_layers=2), memory_limit=10**9)).problem
    costs = []
    for _ in range(2):
        incumbent = Incumbent(seed=5)
        run_scalable(problem, incumbent)
        costs.append((incumbent.best(), incumbent.bound()))
    assert costs[0] == costs[1]


def test_an_answer_of_another_lane_is_taken_up() -> None:
    problem = reduce_fully(layered_problem(LayeredShape(num_layers=2), memory_limit=10**9)).problem
    first = Incumbent()
    run_scalable(problem, first)
    cost, choices = first.best()
    assert cost is not None
    assert choices is not None
    second = Incumbent(deadline=time.monotonic() + 1.0)
    second.offer(choices, cost, source="other")
    run_scalable(problem, second)
    assert second.best()[0] is not None
    assert second.best()[0] <= cost  # type: ignore[operator]
