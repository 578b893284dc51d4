"""Plans run on the devices at hand: eight of a CPU."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard.aot.compile_process import finished
from autoshard.apply.found_constraints import with_constraints
from autoshard.encoding.corrections import corrected
from autoshard.plans.refinement import Refinement
from autoshard.refine import measured
from autoshard.refine.attribution import observe
from autoshard.refine.learnt import Learnt, neighbours
from solvers import evaluate

X = jax.ShapeDtypeStruct((256, 64), jnp.float32)
W = jax.ShapeDtypeStruct((64, 64), jnp.float32)


def update(w: jax.Array, x: jax.Array) -> Any:
    loss, gradient = jax.value_and_grad(lambda v: jnp.mean(jnp.tanh(x @ v) ** 2))(w)
    return w - 0.1 * gradient, loss


@cache
def plan() -> autoshard.Plan:
    return autoshard.optimize(
        update,
        W,
        X,
        mesh="data=2,model=4",
        hardware="cpu-host",
        donate_argnums=0,
        memory_budget=None,
    )


def record(found: autoshard.Plan) -> Refinement:
    assert found.data.refinement is not None
    return found.data.refinement


@pytest.mark.parametrize("target", ["measure", "local"])
def test_the_best_measured_plan_comes_back_with_its_spread(target: str) -> None:
    found = plan().refine(target, rounds=1)
    told = record(found)
    assert told.measure == "measured"
    assert told.chosen is not None
    best = told.tried[told.chosen]
    assert best.compiled_seconds is not None
    assert best.compiled_seconds > 0
    assert best.spread_seconds >= 0
    assert best.compiled_bytes is not None
    assert {one.status for one in told.tried} == {"compiled"}
    # It runs, donated arguments and all.
    w, loss = found.jit()(jnp.ones(W.shape), jnp.ones(X.shape))
    assert w.shape == W.shape
    assert jnp.isfinite(loss)


def test_a_measured_plan_is_read_for_what_the_model_did_not_know() -> None:
    found = plan()
    found = replace(found, data=with_constraints(found.data, found._boundary.program, None))
    measure = found._compiler("measure", None, None)
    compiled = finished(measure(found.data, 60.0))
    assert compiled.measure == "measured"
    assert compiled.module is not None
    assert compiled.prices is not None
    # No op was timed, so the model bounds nothing of what is left to win.
    assert record(found.refine("measure", rounds=2)).left is None


def test_a_plan_that_was_run_costs_what_it_took_against_the_first() -> None:
    base = plan()
    solution = base.solution
    assert solution is not None
    observed = replace(base, data=with_constraints(base.data, base._boundary.program, None))
    compiled = finished(observed._compiler("measure", None, None)(observed.data, 60.0))
    twice = replace(compiled, seconds=2 * solution.step_seconds)
    learnt = Learnt(near=neighbours(solution.graph))
    learnt.add(observe(solution, twice), 2 * solution.step_seconds)
    problem = corrected(solution.encoded, learnt.corrections(), solution.encoder.node_costs).problem
    cost = evaluate(problem, solution.choices).cost
    assert cost == pytest.approx(2 * solution.step_seconds * 1e12, rel=0.01)


def test_it_runs_on_the_arguments_passed() -> None:
    given = (jnp.ones(W.shape), jnp.ones(X.shape))
    told = record(plan().refine("measure", rounds=1, arguments=given))
    assert told.chosen is not None
    assert float(given[0][0, 0]) == 1.0  # what was donated was a copy


def test_a_plan_that_runs_out_of_memory_counts_as_not_fitting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original, runs = measured.Measurement._timed, []

    def timed(self: Any, *args: Any) -> Any:
        runs.append(self)
        if len(runs) == 1:
            raise RuntimeError("RESOURCE_EXHAUSTED: 9 GB on a device of 8 GB")
        return original(self, *args)

    monkeypatch.setattr(measured.Measurement, "_timed", timed)
    told = record(plan().refine("measure", rounds=1))
    assert told.tried[0].status == "out of memory"
    assert "RESOURCE_EXHAUSTED" in told.tried[0].why
    assert told.tried[0].fits is False
    assert told.chosen not in (None, 0)


def test_each_plan_runs_in_turns_with_the_fastest_before_it() -> None:
    order: list[str] = []

    def run(name: str, seconds: float) -> Any:
        def once() -> float:
            order.append(name)
            return seconds

        return once

    one = measured.Measurement(lambda _: pytest.fail("not built"), None, (), None)
    one.fastest = (run("best", 1.0), 1.0)
    own, other = one._timed(run("new", 2.0), until=0.0)
    assert own == [2.0] * 5
    assert other == [1.0] * 5
    assert order == ["new", *["new", "best", "best", "new"] * 2, "new", "best"]


def test_a_mesh_of_more_devices_than_are_at_hand_is_refused() -> None:
    large = autoshard.optimize(
        update, W, X, mesh="data=16", hardware="cpu-host", memory_budget=None
    )
    with pytest.raises(autoshard.InputError, match="the mesh has 16 devices, and 8 are at hand"):
        large.refine("measure")


def test_arguments_lie_where_the_program_takes_them_before_it_is_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # One argument that the program does not use, and one that is static.
    def scaled(w: jax.Array, times: int, _unused: jax.Array, x: jax.Array) -> Any:
        return jnp.tanh(x @ w) * times

    found = autoshard.optimize(
        scaled,
        W,
        2,
        X,
        X,
        mesh="data=2,model=4",
        hardware="cpu-host",
        static_argnums=1,
        memory_budget=None,
    )
    given = (jnp.ones(W.shape), 2, jnp.ones(X.shape), jnp.ones(X.shape))
    placed, original = [], measured._placed

    def seen(*arguments: Any) -> Any:
        placed.append(original(*arguments))
        return placed[-1]

    monkeypatch.setattr(measured, "_placed", seen)
    told = record(found.refine("measure", rounds=1, arguments=given))
    assert told.tried[0].status == "compiled", told.tried[0].why
    (w, left, x), _ = placed[0]
    assert w.sharding.num_devices == x.sharding.num_devices == 8
    assert left is given[2]


def test_arguments_made_by_shape_take_no_memory_of_one_device() -> None:
    assert not isinstance(measured._made(W), jax.Array)
