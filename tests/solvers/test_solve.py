from __future__ import annotations

import itertools
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers import (
    FORBIDDEN,
    Edge,
    NodeMemory,
    Problem,
    ProblemError,
    Progress,
    Result,
    Status,
    evaluate,
    solve,
)
from tests.solvers.instances import LayeredShape, layered_problem, small_problems

SHAPE = LayeredShape(num_layers=3, ops_per_layer=10, num_choices=8)


def test_an_empty_problem_costs_nothing() -> None:
    result = solve(Problem(()))
    assert (result.status, result.choices, result.cost) == (Status.OPTIMAL, (), 0)


def test_a_limit_exactly_met_is_kept_and_one_byte_less_changes_the_answer() -> None:
    problem = Problem(
        (np.array([1, 10]),),
        node_memory=(NodeMemory(0, 0, 1, np.array([100, 50])),),
        memory_limit=100,
    )
    assert solve(problem).cost == 1
    assert solve(replace(problem, memory_limit=99)).cost == 10


@pytest.mark.parametrize(("limit", "cost"), [(100, 1), (99, 10)])
def test_what_was_first_solved_without_the_limit_bounds_what_any_memory_allows(
    limit: int, cost: int
) -> None:
    held = (NodeMemory(0, 0, 1, np.array([100, 40])),)
    result = solve(Problem((np.array([1, 10]),), node_memory=held, memory_limit=limit))
    assert (result.cost, result.bound_without_limit) == (cost, 1)


def test_the_leanest_choices_are_sought_only_where_the_cheapest_do_not_fit() -> None:
    costs = tuple(np.array([1, 10, 12]) for _ in range(2))
    held = tuple(NodeMemory(node, 0, 1, np.array([100, 60, 50])) for node in range(2))
    problem = Problem(costs, node_memory=held, memory_limit=200)
    assert solve(problem, seeks_leanest=True).leanest is None
    tight = solve(replace(problem, memory_limit=160), seeks_leanest=True)
    assert (tight.cost, tight.leanest) == (11, (2, 2))


def test_an_infeasible_limit_tells_the_least_peak_when_and_who_reaches_it() -> None:
    problem = Problem(
        (np.array([1, 10]), np.array([0, 0])),
        node_memory=(
            NodeMemory(0, 0, 9, np.array([100, 50])),
            NodeMemory(1, 4, 9, np.array([7, 8])),
        ),
        memory_limit=30,
    )
    result = solve(problem)
    assert result.status is Status.INFEASIBLE
    assert (result.least_peak, result.least_peak_time) == (57, 4)
    assert result.least_peak_choices == (1, 0)
    assert 30 < result.least_peak_bound <= 57
    assert result.advice == (
        "No choices are allowed: raise the memory limit to at least 57, offer choices that hold "
        "less, or drop forbidden costs."
    )


@pytest.mark.parametrize(
    ("result", "advice"),
    [
        (
            Result(status=Status.INFEASIBLE, choices=None, cost=None, lower_bound=0),
            "No choices are allowed: forbidden costs leave none; drop some of them.",
        ),
        (
            Result(
                status=Status.INFEASIBLE,
                choices=None,
                cost=None,
                lower_bound=0,
                least_peak_bound=9,
            ),
            "No choices are allowed: every peak is at least 9; raise the memory limit, or offer "
            "choices that hold less.",
        ),
        (
            Result(status=Status.NO_SOLUTION, choices=None, cost=None, lower_bound=0),
            "Nothing allowed was found and nothing was proven: raise the time limit.",
        ),
        (
            Result(status=Status.NO_SOLUTION, choices=None, cost=None, lower_bound=0, least_peak=7),
            "Nothing allowed was found and nothing was proven: raise the time limit, or raise the "
            "memory limit to 7, which some choices reach.",
        ),
        (
            Result(status=Status.OPTIMAL, choices=(0,), cost=1, lower_bound=1),
            "Nothing costs less; use the choices as they are.",
        ),
    ],
)
def test_advice_says_what_is_known_of_this_solve(result: Result, advice: str) -> None:
    assert result.advice == advice


def test_forbidden_costs_and_the_limit_together_leave_the_least_peak_known() -> None:
    """Presolve alone finds that nothing is left: no lane ever runs."""
    apart = np.where(np.eye(2, dtype=bool), 0, FORBIDDEN)
    problem = Problem(
        (np.array([0, 0]), np.array([0, 0])),
        edges=(Edge(0, 1, apart),),
        node_memory=(
            NodeMemory(0, 0, 1, np.array([9, 2])),
            NodeMemory(1, 1, 2, np.array([2, 8])),
        ),
        memory_limit=5,
    )
    result = solve(problem)
    assert result.status is Status.INFEASIBLE
    assert result.least_peak_choices in ((0, 0), (1, 1))
    assert result.least_peak == evaluate(problem, result.least_peak_choices).peak


@settings(max_examples=60, deadline=None)
@given(problem=small_problems(), below=st.integers(1, 4))
def test_without_an_answer_the_least_peak_is_real_and_its_bound_holds(
    problem: Problem, below: int
) -> None:
    every = itertools.product(*(range(len(costs)) for costs in problem.node_costs))
    found = [evaluate(problem, choices) for choices in every]
    least = min((one.peak for one in found if one.cost < FORBIDDEN), default=None)
    if least is None or least < below:
        return
    result = solve(replace(problem, memory_limit=least - below), time_limit_seconds=20)
    assert result.status is Status.INFEASIBLE
    assert result.least_peak is not None
    assert result.least_peak_bound <= least <= result.least_peak


def test_forbidden_costs_alone_can_leave_nothing() -> None:
    nothing = np.full((2, 2), FORBIDDEN)
    problem = Problem((np.array([0, 0]),) * 2, (Edge(0, 1, nothing),))
    result = solve(problem)
    assert result.status is Status.INFEASIBLE
    assert result.least_peak is None


def limited(share: float) -> tuple[Problem, Result]:
    """A layered problem with a limit between the least (0) and the cheapest choices' peak (1)."""
    problem = layered_problem(SHAPE)
    free = solve(problem)
    least = solve(replace(problem, memory_limit=0)).least_peak
    assert free.peak is not None
    assert least is not None
    assert least < 0.9 * free.peak
    return replace(problem, memory_limit=int(least + share * (free.peak - least))), free


@pytest.mark.parametrize("share", [0.8, 0.1])
def test_a_binding_limit_costs_more_and_is_proven_within_one_percent(share: float) -> None:
    problem, free = limited(share)
    result = solve(problem, relative_gap=0.01)
    assert result.status in (Status.OPTIMAL, Status.WITHIN_GAP)
    assert result.gap <= 0.01
    assert result.cost is not None
    assert free.cost is not None
    assert result.cost >= free.cost
    assert result.peak is not None
    assert problem.memory_limit is not None
    assert result.peak <= problem.memory_limit


def test_lanes_agree_on_a_layered_problem_with_a_binding_limit() -> None:
    problem, _ = limited(0.4)
    auto = solve(problem)
    exact = solve(problem, engine="mathopt_highs")
    assert auto.status is exact.status is Status.OPTIMAL
    assert auto.cost == exact.cost


def test_a_relaxed_limit_never_worsens_a_proven_optimum() -> None:
    costs = [solve(limited(share)[0]).cost for share in (0.2, 0.6, 1.0)]
    assert None not in costs
    assert costs == sorted(costs, key=lambda cost: -(cost or 0))


def test_a_hint_is_never_made_worse() -> None:
    problem, _ = limited(0.4)
    best = solve(problem)
    assert best.choices is not None
    hinted = solve(problem, hint=best.choices, time_limit_seconds=0.01)
    assert hinted.status.has_choices
    assert hinted.cost is not None
    assert best.cost is not None
    assert hinted.cost <= best.cost


def test_a_hint_within_the_gap_of_what_does_not_fit_ends_the_search() -> None:
    costs = tuple(np.array([1000, 1004, 2000]) for _ in range(3))
    held = tuple(NodeMemory(node, 0, 1, np.array([100, 20, 20])) for node in range(3))
    problem = Problem(costs, node_memory=held, memory_limit=150)
    hint = (1, 1, 1)
    found = solve(problem, hint=hint, relative_gap=0.005)
    assert (found.choices, found.status, found.lower_bound) == (hint, Status.WITHIN_GAP, 3000)
    nearer = solve(problem, hint=hint, relative_gap=0.003)
    assert nearer.cost == 3008


def test_a_hint_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(ProblemError, match="choices: 1 choices given, expected one per node: 2"):
        solve(Problem((np.array([0]), np.array([0]))), hint=(0,))


def test_no_time_at_all_still_ends_with_a_status() -> None:
    problem, _ = limited(0.4)
    start = time.monotonic()
    result = solve(problem, time_limit_seconds=0.0)
    assert time.monotonic() - start < 5
    assert result.status in (Status.NO_SOLUTION, Status.FEASIBLE, Status.OPTIMAL)
    if result.choices is None:
        assert result.advice.startswith("Nothing allowed was found")


def test_progress_tells_stages_in_order_and_bounds_that_only_rise() -> None:
    problem, _ = limited(0.4)
    seen: list[Progress] = []
    result = solve(problem, progress=seen.append)
    assert seen
    assert [p.seconds for p in seen] == sorted(p.seconds for p in seen)
    assert seen[0].stage == "presolve without memory"
    assert all(p.lower_bound <= (result.cost or 0) for p in seen)
    costs = [p.cost for p in seen if p.cost is not None]
    assert costs[-1] == result.cost


def test_the_result_says_what_was_done_and_how_long_it_took() -> None:
    problem, _ = limited(0.4)
    result = solve(problem)
    assert list(result.seconds_by_stage) == [
        "presolve without memory",
        "solve without memory",
        "presolve",
        "solve",
    ]
    assert any(line.startswith("memory rows can bind: ") for line in result.log)
    assert "the cheapest choices do not fit: the memory limit comes in" in result.log


def test_the_asked_gap_counts_what_presolve_already_paid() -> None:
    layered = layered_problem(SHAPE)
    paid = Problem((*layered.node_costs, np.array([10**14])), layered.edges)
    result = solve(paid, relative_gap=0.01)
    assert result.gap <= 0.01
    assert evaluate(paid, result.choices or ()).cost == result.cost


@pytest.mark.slow
def test_nine_thousand_nodes_are_solved_within_one_percent() -> None:
    problem = layered_problem(LayeredShape(num_layers=32, ops_per_layer=100, num_choices=30))
    result = solve(problem, relative_gap=0.01, time_limit_seconds=60)
    assert result.gap <= 0.01
    assert result.peak is not None
    least = solve(replace(problem, memory_limit=0), time_limit_seconds=60).least_peak
    assert least is not None
    tight = replace(problem, memory_limit=(least + result.peak) // 2)
    assert solve(tight, relative_gap=0.01, time_limit_seconds=120).gap <= 0.01
