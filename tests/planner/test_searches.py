"""The searches that one plan takes, within one time limit."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard.planning import followed, planner, searches
from autoshard.planning.least_memory import solved_from_leanest
from autoshard.planning.room_for_gaps import with_room_for_gaps
from autoshard.planning.searches import Searches, SolveOptions
from autoshard.planning.solution import Solution, as_answer
from autoshard.planning.stages import Stages
from autoshard.remat_search import RematSearch
from solvers import Problem, Result, Status, solve
from tests.lowering.test_heap_simulator import with_a_gap
from tests.planner.graphs import plan

LIMIT = 8.0


class Slow:
    """A solver that takes all of the time it is given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.given: list[float] = []
        monkeypatch.setattr(searches, "solve", self.solve)
        monkeypatch.setattr(searches, "time", SimpleNamespace(monotonic=lambda: self.now))

    def solve(self, problem: Problem, **asked: Any) -> Result:
        self.given.append(asked["time_limit_seconds"])
        self.now += self.given[-1]
        return solve(problem, **asked)


def of_a_plan() -> tuple[Problem, Searches]:
    problem = plan(with_a_gap(), "x=4", None, None, "tpu-v5p").encoded.problem
    return problem, Searches(SolveOptions(time_limit_seconds=LIMIT), Stages())


def test_all_searches_beside_the_first_take_no_longer_than_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem, asked = of_a_plan()
    slow = Slow(monkeypatch)
    asked.first(problem)
    while not asked.is_over:
        asked.another(problem, share=0.4)
    assert slow.given == pytest.approx([LIMIT, 0.4 * LIMIT, 0.4 * LIMIT, 0.2 * LIMIT])


def test_a_search_takes_half_of_the_time_that_is_left_for_planning_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem, _ = of_a_plan()
    slow = Slow(monkeypatch)
    stages = Stages(limit_seconds=LIMIT)
    monkeypatch.setattr(
        "autoshard.planning.stages.time", SimpleNamespace(perf_counter=lambda: slow.now)
    )
    asked = Searches(SolveOptions(time_limit_seconds=LIMIT), stages)
    asked.first(problem)
    asked.another(problem, share=1.0)
    asked.another(problem, share=1.0)
    assert slow.given == pytest.approx([LIMIT / 2, LIMIT / 4, LIMIT / 8])


def test_time_that_was_over_before_the_search_leaves_the_leanest_plan_where_nothing_fits() -> None:
    found = autoshard.optimize(
        lambda w, x: jnp.tanh(x @ w),
        *(jax.ShapeDtypeStruct((64, 64), jnp.float32),) * 2,
        mesh="x=2",
        hardware="cpu-host",
        memory_budget=1_000,
        time_limit_seconds=0.0,
        remat="keep",
    )
    assert not found.data.is_feasible
    assert found.data.memory.peak_bytes > 1_000


def test_where_nothing_fits_in_time_the_searches_that_follow_keep_to_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem, asked = of_a_plan()
    found = asked.first(problem)
    tight = replace(problem, memory_limit=found.peak)
    slow = Slow(monkeypatch)
    result = solved_from_leanest(tight, replace(found, status=Status.NO_SOLUTION), asked)
    assert result.status.has_choices
    assert sum(slow.given) <= LIMIT
    assert asked.is_over


def test_the_leanest_that_a_search_looked_for_first_is_not_looked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    roomy = plan(with_a_gap(), "x=4", None, None, "tpu-v5p")
    tight = replace(roomy.encoded.problem, memory_limit=1)
    found = solve(tight)
    late = replace(found, status=Status.NO_SOLUTION, leanest=found.least_peak_choices)
    slow = Slow(monkeypatch)
    asked = Searches(SolveOptions(time_limit_seconds=LIMIT), Stages())
    result = solved_from_leanest(tight, late, asked)
    assert result.least_peak_choices == late.least_peak_choices
    assert slow.given == []


def test_cheap_choices_among_the_leanest_are_looked_for_in_little_of_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each set of residuals of an 8B Llama that does not fit took 18 to 22 s; the last one may."""
    roomy = plan(with_a_gap(), "x=4", None, None, "tpu-v5p")
    tight = replace(roomy.encoded.problem, memory_limit=1)
    lean = replace(roomy, encoded=replace(roomy.encoded, problem=tight), result=solve(tight))
    slow = Slow(monkeypatch)
    followed.leanest_as_lowered(lean, Searches(SolveOptions(time_limit_seconds=LIMIT), Stages()))
    assert sum(slow.given) <= LIMIT / 10
    options = SolveOptions(time_limit_seconds=LIMIT)
    planner.with_least_peak(lean, options, stages=Stages())
    assert slow.given[-1] == LIMIT / 4


def too_wide() -> tuple[Solution, Searches, int]:
    """A plan one byte above its limit, searches that know the leanest, and what that holds."""
    roomy = plan(with_a_gap(), "x=4", None, None, "tpu-v5p")
    tight = replace(roomy.encoded.problem, memory_limit=roomy.peak_bytes - 1)
    asked = Searches(SolveOptions(time_limit_seconds=LIMIT, relative_gap=0.0), Stages())
    lean = solve(replace(tight, memory_limit=1))
    asked.leanest = lean.least_peak_choices
    assert lean.least_peak is not None
    roomy.encoder.memory_limit = roomy.peak_bytes - 1
    return replace(roomy, encoded=replace(roomy.encoded, problem=tight)), asked, lean.least_peak


def test_a_plan_with_gaps_is_looked_for_above_the_leanest_once_that_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wide, asked, lean = too_wide()
    limits: list[int | None] = []

    def told(problem: Problem, **options: Any) -> Result:
        limits.append(problem.memory_limit)
        return solve(problem, **options)

    monkeypatch.setattr(searches, "solve", told)
    found = with_room_for_gaps(wide, asked)
    assert found.is_feasible
    assert found.peak_bytes <= (wide.encoded.problem.memory_limit or 0)
    assert all(one is not None and one >= lean for one in limits)


def test_the_leanest_that_is_known_is_the_plan_where_no_time_is_left_and_only_it_fits() -> None:
    wide, asked, _ = too_wide()
    asked.stages.is_interrupted = True
    assert asked.is_over
    found = with_room_for_gaps(wide, asked)
    assert found.is_feasible
    assert found.choices == asked.leanest


@pytest.mark.parametrize(
    ("bound", "status"),
    [(1.0, Status.OPTIMAL), (0.995, Status.WITHIN_GAP), (0.9, Status.FEASIBLE)],
)
def test_an_answer_found_elsewhere_is_as_good_as_what_is_proven_here(
    bound: float, status: Status
) -> None:
    solution = plan(with_a_gap(), "x=4", None, None, "tpu-v5p")
    assert solution.result.cost is not None
    proven = replace(solution.result, lower_bound=round(bound * solution.result.cost))
    before = replace(solution, result=proven)
    assert as_answer(before, solution.result, solution.choices, 0.01).status is status


def test_what_a_longer_search_proves_holds_where_the_plan_before_it_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def too_large(found: Solution, _: Searches) -> Solution:
        unfit = replace(found.result, status=Status.NO_SOLUTION, choices=None, cost=None)
        return replace(found, result=unfit)

    solution = plan(with_a_gap(), "x=4", None, None, "tpu-v5p")
    unproven = replace(solution.result, lower_bound=0, status=Status.FEASIBLE)
    monkeypatch.setattr(planner, "followed", too_large)
    found = planner.plan_further(replace(solution, result=unproven), SolveOptions())
    assert found.choices == solution.choices
    assert found.result.status is Status.OPTIMAL
    assert found.result.lower_bound == solution.result.cost


def test_asked_for_the_best_so_far_no_search_for_what_to_keep_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where nothing fits as written; each search after that is short."""
    given: list[float] = []

    def interrupted(problem: Problem, **asked: Any) -> Result:
        given.append(asked["time_limit_seconds"])
        return replace(solve(problem, **asked), is_interrupted=True)

    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        def loss(w: jax.Array) -> jax.Array:
            made = x
            for _ in range(4):
                made = jnp.tanh(made @ w)
            total: jax.Array = jnp.sum(made)
            return total

        stepped: jax.Array = w - jax.grad(loss)(w)
        return stepped

    monkeypatch.setattr(searches, "solve", interrupted)
    monkeypatch.setattr(RematSearch, "run", lambda *_: pytest.fail("a search began"))
    given_shapes = (jax.ShapeDtypeStruct((64, 64), jnp.float32),) * 2
    found = autoshard.optimize(
        step, *given_shapes, mesh="x=2", hardware="cpu-host", memory_budget=72_000, baselines=False
    )  # a budget that no bound rules out before a search
    assert given
    assert not found.data.is_feasible
    assert all(seconds <= searches.SECONDS_WHEN_INTERRUPTED for seconds in given[1:])
