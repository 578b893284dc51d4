"""A step that does not fit is planned with other residuals, and runs to the same numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name

import autoshard
from autoshard import program_search, remat_search
from autoshard.errors import AutoshardError, InputError, PlanError
from autoshard.planning.planner import plan_graph
from autoshard.planning.searches import Searches, SolveOptions
from autoshard.planning.solution import NoPlanInTimeError, Solution, TooLargeError
from autoshard.remat_search import RematSearch
from experiments.conv_nets import images, init_vgg, vgg
from experiments.conv_nets import train_step as vgg_step
from solvers import Problem, Result, Status
from tests.remat.programs import Step, arguments, layer, scanned

ROWS = 512
"""Rows of the batch: residuals take most of the memory of a step."""
MESH = "data=8"


STEP = scanned()


def planned(step: Step = STEP, **options: Any) -> autoshard.Plan:
    usual = {"baselines": False, "schedules": "none", "donate_argnums": 0, "hardware": "cpu-host"}
    return autoshard.optimize(step, *arguments(ROWS), **{"mesh": MESH, **usual, **options})


@pytest.fixture(scope="module")
def as_written() -> autoshard.Plan:
    """The step with all the memory it wants."""
    return planned(memory_budget=None)


@pytest.fixture(scope="module")
def budget(as_written: autoshard.Plan) -> int:
    """Half of what the step as written takes with the shardings that take least."""
    memory = as_written.data.memory
    return memory.argument_bytes + (memory.peak_bytes - memory.argument_bytes) // 2


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the tight plan is kept."""
    return tmp_path_factory.mktemp("plans")


@pytest.fixture(scope="module")
def tight(budget: int, cache: Path) -> autoshard.Plan:
    return planned(memory_budget=budget, cache=cache)


def results(run: Any) -> list[Any]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(run(*arguments(ROWS)))]


def test_where_memory_is_ample_the_program_is_as_written(as_written: autoshard.Plan) -> None:
    assert as_written.data.residuals is None
    assert "residuals" not in as_written.report()


def test_a_step_that_fits_no_other_way_is_planned_with_fewer_residuals(
    tight: autoshard.Plan, budget: int
) -> None:
    kept = planned(memory_budget=budget, remat="keep").data
    assert not kept.is_feasible
    assert 'remat="auto" chooses which' in kept.solver.advice
    assert tight.data.is_feasible
    assert tight.data.memory.peak_bytes <= budget
    chosen = tight.data.residuals
    assert chosen is not None
    assert chosen.saved_bytes > 0
    assert chosen.as_written_peak_bytes is not None
    assert chosen.as_written_peak_bytes > budget
    assert {one.is_kept for one in chosen.residuals} == {True, False}
    assert [one.is_chosen for one in chosen.tried].count(True) == 1


def test_a_step_that_fits_with_slower_shardings_is_planned_with_fewer_residuals_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(program_search, "_LEAST_SECONDS", 40.0)  # no slow machine cuts it short
    ample = planned(memory_budget=None, hardware="tpu-v5e").data.memory
    budget = ample.argument_bytes + (9 * (ample.peak_bytes - ample.argument_bytes)) // 10
    kept, chosen = (
        planned(memory_budget=budget, hardware="tpu-v5e", remat=remat, relative_gap=0.1).data
        for remat in ("keep", "auto")
    )
    assert kept.is_feasible
    assert chosen.residuals is not None
    assert chosen.memory.peak_bytes <= budget
    assert chosen.priced_seconds < 0.9 * kept.priced_seconds


def test_a_convolutional_step_computes_no_more_again_than_its_budget_asks_for() -> None:
    """Weight gradients were taken to wait for the end of the step, with all that they read."""
    params = jax.eval_shape(init_vgg, jax.random.key(0))

    def within(budget: int | None) -> Any:
        return autoshard.optimize(
            vgg_step(vgg),
            params,
            images(64, 224),
            mesh="data=1",
            hardware="h100:1",
            memory_budget=budget,
            donate_argnums=0,
            baselines=False,
        ).data

    ample = within(None)
    memory = ample.memory
    tight = within(memory.argument_bytes + (2 * (memory.peak_bytes - memory.argument_bytes)) // 3)
    assert tight.is_feasible
    assert tight.residuals is not None
    assert tight.priced_seconds < 1.1 * ample.priced_seconds


def test_the_plan_runs_to_the_numbers_of_the_step(tight: autoshard.Plan) -> None:
    expected = results(jax.jit(scanned()))
    for run in (tight.jit(donate_argnums=()), tight.wrap()):
        for before, after in zip(expected, results(run), strict=True):
            np.testing.assert_allclose(before, after, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("compiled_here")
def test_the_compiler_takes_less_memory_too(
    tight: autoshard.Plan, as_written: autoshard.Plan
) -> None:
    before, after = as_written.verify().memory, tight.verify().memory
    assert before is not None
    assert after is not None
    assert after.temp_bytes < 0.6 * before.temp_bytes


def test_a_saved_plan_replays_the_choice(tight: autoshard.Plan, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    tight.save(path)
    again = autoshard.load_plan(path, scanned(), *arguments(ROWS))
    assert again.data.residuals == tight.data.residuals
    assert again.traced is not None
    assert tight.traced is not None
    assert str(again.traced.jaxpr) == str(tight.traced.jaxpr)
    for before, after in zip(results(tight.wrap()), results(again.wrap()), strict=True):
        np.testing.assert_array_equal(before, after)


def test_a_plan_of_another_program_is_refused(tight: autoshard.Plan, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    tight.save(path)
    other = scanned(lambda x, w: layer(x, w) * 2.0)
    with pytest.raises(PlanError, match="the plan was made for another program"):
        autoshard.load_plan(path, other, *arguments(ROWS))
    with pytest.raises(PlanError, match="the plan was made for another program"):
        tight.wrap(other)(*arguments(ROWS))


def test_the_first_lines_of_the_report_tell_what_is_computed_again(tight: autoshard.Plan) -> None:
    report = tight.report()
    (line,) = [text for text in report.splitlines()[:8] if text.strip().startswith("residuals")]
    assert "again: saves" in line
    assert "Residuals  what backward passes read" in report
    assert "computed again" in report


def test_off_takes_back_the_checkpoint_of_the_user() -> None:
    rematerialised = scanned(jax.checkpoint(layer))
    kept, off = (
        planned(rematerialised, memory_budget=None, remat=said) for said in ("keep", "off")
    )
    assert off.data.memory.peak_bytes > kept.data.memory.peak_bytes
    assert off.data.residuals is not None
    assert "jax.checkpoint has no effect" in off.report()
    for before, after in zip(results(jax.jit(scanned())), results(off.wrap()), strict=True):
        np.testing.assert_allclose(before, after, rtol=1e-5, atol=1e-6)


def test_a_word_that_is_no_way_to_treat_residuals_is_refused() -> None:
    with pytest.raises(InputError, match="remat cannot be 'always'"):
        planned(remat="always")


def test_a_step_that_fits_with_no_residuals_at_all_is_told_so() -> None:
    plan = planned(memory_budget=1000, mesh="data=8")
    assert not plan.data.is_feasible
    assert plan.report().startswith("step on 8 x cpu-host")
    assert "sets of residuals were planned, the smallest among them" in plan.data.solver.advice


def test_a_step_that_ran_out_of_time_as_written_is_planned_with_fewer_residuals(
    budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []

    def late_at_first(*args: Any, **options: Any) -> Any:
        calls.append(args)
        if len(calls) == 1:
            raise NoPlanInTimeError("the solver found no plan before its time was up")
        return plan_graph(*args, **options)

    monkeypatch.setattr("autoshard.program_search.plan_graph", late_at_first)
    plan = planned(memory_budget=budget)
    assert plan.data.is_feasible
    assert plan.data.residuals is not None
    assert plan.data.residuals.as_written_peak_bytes is None


def test_a_step_that_a_bound_shows_not_to_fit_is_not_solved_as_it_is_written(
    budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds: list[int] = []

    def told(*args: Any, **options: Any) -> Solution:
        try:
            return plan_graph(*args, **options)
        except TooLargeError as error:
            bounds.append(error.least_bytes)
            raise

    monkeypatch.setattr("autoshard.program_search.plan_graph", told)
    plan = planned(memory_budget=budget)
    assert plan.data.residuals is not None
    assert bounds == [plan.data.residuals.as_written_peak_bytes]
    assert bounds[0] > budget


def test_of_the_sets_of_residuals_that_are_planned_the_chosen_one_alone_is_made_simpler(
    budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Solution] = []

    def told(solution: Solution, *_: Any, **__: Any) -> Solution:
        made.append(solution)
        return solution

    monkeypatch.setattr("autoshard.program_search.simplified", told)
    plan = planned(memory_budget=budget)
    assert plan.data.residuals is not None
    assert len(plan.data.residuals.tried) > 1
    assert [solution.peak_bytes for solution in made] == [plan.data.memory.peak_bytes]


def test_the_joint_problem_is_solved_for_no_more_sets_than_are_planned(
    budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last answer was left unused."""
    monkeypatch.setattr(remat_search, "MOST_SETS", 2)
    events = plans_and_solves(monkeypatch)
    planned(memory_budget=budget, simplicity=0.0)
    assert events.count("plan") == 2
    assert events[-1] == "plan"


def test_the_joint_problem_is_not_solved_again_where_a_set_leaves_less_room_than_the_gap(
    budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = plans_and_solves(monkeypatch)
    planned(memory_budget=budget, simplicity=0.0, relative_gap=0.5)
    assert events.count("plan") == 2
    assert events[-1] == "plan"


def test_the_limit_falls_where_a_set_fits_only_with_a_slower_plan_than_the_leanest(
    budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It rose, and the search ended there."""
    limits: list[int | None] = []
    solved = Searches.another

    def told(searches: Searches, problem: Problem, *hints: Any, **options: Any) -> Result:
        limits.append(problem.memory_limit)
        return solved(searches, problem, *hints, **options)

    slower = property(lambda one: (False, float(one.choices is not None)))
    monkeypatch.setattr(remat_search._Tried, "rank", slower)
    monkeypatch.setattr(Searches, "another", told)
    planned(memory_budget=budget, simplicity=0.0)
    _, first, second, *_ = limits
    assert first is not None
    assert second is not None
    assert second < first


def plans_and_solves(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The plans and solves of the search for residuals from now on, as it goes."""
    events: list[str] = []

    def told(kind: type, name: str, event: str) -> None:
        usual = getattr(kind, name)

        def run(*args: Any, **options: Any) -> Any:
            events.append(event)
            return usual(*args, **options)

        monkeypatch.setattr(kind, name, run)

    told(RematSearch, "_planned", "plan")
    told(Searches, "another", "solve")
    return events


def dropout(x: jax.Array, w: dict[str, jax.Array]) -> Any:
    """A block with a named mask: its random bits take most of the time."""
    hidden = x @ w["up"]
    mask = checkpoint_name(jax.random.bernoulli(w["key"], 0.9, hidden.shape), "mask")
    return x + jnp.where(mask, hidden, 0.0) @ w["down"]


def test_a_set_that_a_policy_saves_is_taken_where_the_search_finds_only_dearer_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    solved = Searches.another

    def computing_all_again(
        searches: Searches, problem: Problem, *hints: Sequence[int], **options: Any
    ) -> Result:
        found = solved(searches, problem, *hints, **options)
        return replace(found, choices=tuple(hints[1])) if len(hints) > 1 else found

    monkeypatch.setattr(Searches, "another", computing_all_again)
    plan = planned(scanned(dropout), memory_budget=110_000, simplicity=0.0)
    assert plan.data.residuals is not None
    leanest, saved = plan.data.residuals.tried
    assert saved.is_chosen
    assert saved.num_kept > leanest.num_kept
    assert saved.seconds is not None
    assert leanest.seconds is not None
    assert saved.seconds < leanest.seconds


@pytest.mark.parametrize(("gap", "num_sets"), [(0.001, 3), (0.01, 2)])
def test_no_further_set_is_planned_for_less_than_the_gap_asked_for(
    budget: int, gap: float, num_sets: int
) -> None:
    """The third one promises 0.3 %."""
    plan = planned(memory_budget=budget, relative_gap=gap)
    assert plan.data.residuals is not None
    assert len(plan.data.residuals.tried) == num_sets


def test_a_step_as_written_takes_an_eighth_of_the_time_first_and_as_much_if_it_stays(
    as_written: autoshard.Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[float] = []

    def unproven(*args: Any, **asked: Any) -> Solution:
        limits.append(args[5].time_limit_seconds)
        found = plan_graph(*args, **asked)
        return replace(found, result=replace(found.result, status=Status.FEASIBLE))

    def further(solution: Solution, options: SolveOptions, **_: Any) -> Solution:
        limits.append(options.time_limit_seconds)
        return solution

    monkeypatch.setattr("autoshard.program_search.plan_graph", unproven)
    monkeypatch.setattr("autoshard.program_search.plan_further", further)
    memory = as_written.data.memory
    planned(memory_budget=3 * memory.peak_bytes, time_limit_seconds=80.0)
    assert limits == [10.0, 10.0]


@pytest.mark.parametrize(
    ("fit", "more"),
    [
        ([True, False, False], True),
        ([True, False, False, True], False),
        ([True, False, True], False),
        ([True, True], True),
        ([True, False, False, False, False], False),
    ],
)
def test_more_sets_are_planned_while_none_but_the_leanest_fits(fit: list[bool], more: bool) -> None:
    """An 8B Llama on eight H100: two sets pass the budget by 3 %, the next is 10 % faster."""
    unused: Any = None
    search = RematSearch(unused, unused, unused, unused, unused, budget=1)
    search._tried += [cast("Any", SimpleNamespace(fits=one)) for one in fit]
    assert search._has_enough() is not more


def test_a_program_without_a_backward_pass_is_left_alone() -> None:
    plan = autoshard.optimize(
        lambda x: jnp.tanh(x @ x),
        jax.ShapeDtypeStruct((512, 512), jnp.float32),
        mesh=MESH,
        hardware="cpu-host",
        memory_budget=1000,
    )
    assert plan.data.residuals is None


def named(x: Any, w: Any) -> Any:
    """The layer, with a name for what its first matmul makes."""
    hidden = checkpoint_name(x @ w["up"], "hidden")
    return x + (hidden * hidden) @ w["down"]


def states(plan: autoshard.Plan, what: str) -> set[bool]:
    assert plan.data.residuals is not None
    return {one.is_kept for one in plan.data.residuals.residuals if one.what == what}


def test_what_users_ask_to_keep_is_kept_and_what_to_compute_again_is_not() -> None:
    step = scanned(named)
    kept = planned(step, memory_budget=None, constraints=autoshard.Keep("hidden"))
    again = planned(step, memory_budget=None, constraints=[autoshard.Recompute("hidden")])
    assert states(kept, "hidden") == {True}
    assert states(again, "hidden") == {False}
    assert again.data.memory.peak_bytes < kept.data.memory.peak_bytes
    assert [term.text for term in kept.data.asked] == ["keep `hidden`"]
    for before, after in zip(results(jax.jit(step)), results(again.wrap()), strict=True):
        np.testing.assert_allclose(before, after, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("asked", [autoshard.Keep("hidden"), autoshard.Recompute("hidden")])
def test_what_users_ask_of_residuals_holds_where_time_is_over(asked: Any) -> None:
    """It was left out without a word."""
    plan = planned(scanned(named), memory_budget=None, constraints=asked, time_limit_seconds=0.0)
    assert states(plan, "hidden") == {isinstance(asked, autoshard.Keep)}


def test_where_time_is_over_before_residuals_are_chosen_the_advice_is_to_raise_the_limit(
    budget: int,
) -> None:
    """It said that none could be computed again."""
    plan = planned(memory_budget=budget, time_limit_seconds=0.0)
    assert not plan.data.is_feasible
    assert plan.data.solver.advice.endswith("chosen in time: raise time_limit_seconds.")


def test_an_interrupt_while_residuals_are_chosen_leaves_the_plan_as_written(
    monkeypatch: pytest.MonkeyPatch, budget: int
) -> None:
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(RematSearch, "run", interrupted)
    plan = planned(memory_budget=budget)
    assert not plan.data.is_feasible
    assert plan.data.residuals is None


def test_residuals_in_a_constraints_file_are_those_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "constraints.yaml"
    path.write_text("recompute: ['name:hidden']\n")
    plan = planned(scanned(named), memory_budget=None, constraints=path)
    assert states(plan, "hidden") == {False}


@pytest.mark.parametrize(
    ("constraints", "options", "message"),
    [
        (autoshard.Keep("elsewhere"), {}, "selects nothing that a backward pass reads"),
        (
            [autoshard.Keep("hidden"), autoshard.Recompute("hidden")],
            {},
            "cannot be both kept and computed again",
        ),
        (autoshard.Keep("hidden"), {"remat": "keep"}, "remat='keep' leaves none to choose"),
    ],
)
def test_what_cannot_be_had_of_residuals_is_refused(
    constraints: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(AutoshardError, match=message):
        planned(scanned(named), memory_budget=None, constraints=constraints, **options)


def test_a_policy_of_jax_says_what_the_plan_keeps() -> None:
    plan = planned(scanned(named), memory_budget=None, constraints=autoshard.Keep("hidden"))
    policy = plan.checkpoint_policy()
    assert "save_only_these_names(" in policy
    assert '"hidden"' in policy
    assert any("kept for the backward pass" in note for note in plan.why("name:hidden").notes)
    with pytest.raises(PlanError, match="the plan chose no residuals"):
        planned(memory_budget=None).checkpoint_policy()


@pytest.mark.slow
def test_a_cache_keeps_the_choice(tight: autoshard.Plan, budget: int, cache: Path) -> None:
    kept = planned(memory_budget=budget, cache=cache)
    assert tight.solved is not None
    assert kept.solved is None
    assert kept.data.residuals == tight.data.residuals
    assert kept.data.kept_residuals == tight.data.kept_residuals
    for before, after in zip(results(tight.wrap()), results(kept.wrap()), strict=True):
        np.testing.assert_array_equal(before, after)
    assert kept.why("state['weights']['up']").chosen is not None
