"""A solver that finds nothing in time leaves the best plan written by hand that fits."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autoshard
from autoshard import searched_constraints
from autoshard.hlo.compiled import compare_collectives, read_compiled
from autoshard.planning import followed, searches
from solvers import Problem, Result, Status, solve

BATCH = np.random.default_rng(0).normal(size=(64, 256)).astype(np.float32)


def train_step(params: dict[str, jax.Array], x: jax.Array) -> Any:
    def loss(params: dict[str, jax.Array]) -> Any:
        return jnp.mean((jax.nn.relu(x @ params["w1"]) @ params["w2"] - x) ** 2)

    value, gradient = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient), value


PARAMS = {"w1": np.ones((256, 512), np.float32) / 256, "w2": np.ones((512, 256), np.float32) / 512}


def planned(**options: Any) -> autoshard.Plan:
    return autoshard.optimize(
        train_step,
        PARAMS,
        BATCH,
        mesh="data=2,model=4",
        hardware="tpu-v5e",
        donate_argnums=0,
        **options,
    )


@pytest.fixture
def nothing_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(problem: Problem, **options: Any) -> Result:
        found = solve(problem, **options)
        return replace(found, status=Status.NO_SOLUTION, choices=None, cost=None, lower_bound=0)

    monkeypatch.setattr(searches, "solve", late)


@pytest.mark.usefixtures("nothing_in_time")
@pytest.mark.parametrize("baselines", [True, False])
def test_the_best_hand_plan_is_the_answer_and_the_status_says_so(baselines: bool) -> None:
    plan = planned(baselines=baselines)
    priced = {row.name: row.seconds for row in planned_in_full().data.baselines}
    best = min(priced, key=lambda name: priced[name])
    assert plan.data.solver.status == "feasible"
    assert plan.data.solver.advice == (
        f"The plan written by hand called {best}: the solver found nothing faster in its time;"
        " raise time_limit_seconds."
    )
    assert plan.data.compute_seconds + plan.data.communication_seconds == pytest.approx(
        priced[best]
    )
    params, value = plan.jit()(jax.tree.map(jnp.asarray, PARAMS), BATCH)
    expected, reference = jax.jit(train_step)(PARAMS, BATCH)
    np.testing.assert_allclose(value, reference, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), params, expected)


@cache
def planned_in_full() -> autoshard.Plan:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(searches, "solve", solve)
        return planned()


@pytest.mark.usefixtures("nothing_in_time")
def test_a_hand_plan_that_does_not_fit_is_no_answer() -> None:
    rows = {row.name: row for row in planned_in_full().data.baselines}
    budget = rows["replicated"].peak_bytes - 1
    plan = planned(memory_budget=budget)
    assert "replicated" not in plan.data.solver.advice
    assert plan.data.memory.peak_bytes <= budget
    assert not planned(memory_budget=min(r.peak_bytes for r in rows.values()) // 2).data.is_feasible


def test_a_search_that_is_cut_short_goes_on_from_the_best_hand_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hints: list[tuple[int, ...]] = []

    def cut_short(problem: Problem, **options: Any) -> Result:
        found = solve(problem, **options)
        hints.extend(map(tuple, options["hints"]))
        if len(hints) > 0:
            return found
        return replace(found, status=Status.NO_SOLUTION, choices=None, cost=None)

    monkeypatch.setattr(searches, "solve", cut_short)
    plan = planned()
    assert len(hints) == 1
    assert plan.data.solver.status in ("optimal", "within gap")
    full = planned_in_full()
    assert plan.data.compute_seconds == pytest.approx(full.data.compute_seconds, rel=0.02)


@pytest.mark.parametrize("stage", ["simpler", "followed"])
def test_an_interrupt_after_the_search_leaves_its_plan(
    monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    known, interrupts = getattr(followed, stage), iter([KeyboardInterrupt])

    def interrupted(*args: Any) -> Any:
        for error in interrupts:
            raise error
        return known(*args)

    monkeypatch.setattr(followed, stage, interrupted)
    plan = planned()
    assert plan.data.is_feasible
    assert plan.data.baselines == ()
    assert any("not compared with replicated" in note for note in plan.data.notes)


def test_once_time_is_over_plans_by_hand_are_not_compared_with_and_one_is_the_answer() -> None:
    plan = planned(time_limit_seconds=1e-6)
    assert plan.data.solver.status == "feasible"
    assert plan.data.solver.advice.startswith("The plan written by hand called replicated")
    assert plan.data.baselines == ()


def test_a_limit_of_no_time_still_has_an_answer() -> None:
    plan = planned(time_limit_seconds=0.0)
    assert plan.data.is_feasible
    full = plan.data.priced_seconds
    for row in plan.data.baselines:
        if row.fits:
            assert full <= (row.overlapped_seconds or row.seconds) * (1 + 1e-9)


def test_where_no_time_is_left_to_propagate_every_value_has_its_constraint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(searched_constraints, "_LEAST_SECONDS", 0.0)
    plan = planned(time_limit_seconds=0.0)
    asked = plan.constraints
    assert len(asked) > len(planned_in_full().constraints)
    assert plan.data.notes[-1].startswith(f"each of {len(asked)} values has a constraint")
    params, value = plan.jit()(jax.tree.map(jnp.asarray, PARAMS), BATCH)
    expected, reference = jax.jit(train_step)(PARAMS, BATCH)
    np.testing.assert_allclose(value, reference, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), params, expected)
    compiled = plan.jit(donate_argnums=()).lower(PARAMS, BATCH).compile()
    collectives = read_compiled(compiled, plan.data.mesh).collectives
    compared = compare_collectives(plan.data.collectives, collectives)
    assert compared.predicted_bytes == compared.compiled_bytes
