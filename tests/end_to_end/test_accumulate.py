"""Steps planned over microbatches: equal numbers, less memory, and all that a plan is used for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autoshard
from autoshard.errors import InputError
from autoshard.planning.planner import plan_graph
from experiments.workloads import get_workload
from tests.remat.programs import arguments, layer, scanned, unrolled

ROWS = 512
MESH = "data=8"


HOST: dict[str, Any] = {"mesh": MESH, "hardware": "cpu-host"}


def loss(weights: Any, x: jax.Array) -> Any:
    return jax.value_and_grad(lambda w: jnp.mean(jnp.tanh(x @ w["a"]) @ w["b"]))(weights)


OF_LOSS = (
    {"a": jnp.ones((16, 32)), "b": jnp.ones((32, 8))},
    jnp.linspace(0.0, 1.0, 64 * 16).reshape(64, 16),
)


def planned(accumulate: Any, step: Any = None, **options: Any) -> autoshard.Plan:
    options = {"baselines": False, "schedules": "none", "donate_argnums": 0, **options}
    return autoshard.optimize(
        step or scanned(),
        *arguments(ROWS),
        **HOST,
        accumulate=accumulate,
        **options,
    )


@pytest.fixture(scope="module")
def whole() -> autoshard.Plan:
    return planned(None)


@pytest.fixture(scope="module")
def plan() -> autoshard.Plan:
    return planned(4)


def results(run: Any) -> list[Any]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(run(*arguments(ROWS)))]


def require_equal(run: Any, step: Any = None) -> None:
    for before, after in zip(results(jax.jit(step or scanned())), results(run), strict=True):
        np.testing.assert_allclose(before, after, rtol=1e-5, atol=1e-6)


def test_the_plan_runs_to_the_numbers_of_the_step(plan: autoshard.Plan) -> None:
    for run in (plan.jit(donate_argnums=()), plan.wrap()):
        require_equal(run)


@pytest.mark.usefixtures("compiled_here")
def test_memory_falls_as_predicted_and_no_bytes_move_that_are_not_planned(
    plan: autoshard.Plan, whole: autoshard.Plan
) -> None:
    assert plan.data.memory.peak_bytes < 0.5 * whole.data.memory.peak_bytes
    before, after = whole.verify(), plan.verify()
    assert before.memory is not None
    assert after.memory is not None
    assert after.memory.temp_bytes < 0.5 * before.memory.temp_bytes
    assert after.memory.predicted_bytes == pytest.approx(after.memory.compiled_bytes, rel=0.12)
    assert after.predicted_bytes == pytest.approx(after.compiled_bytes, rel=0.05)


def test_a_saved_plan_replays_the_microbatches(plan: autoshard.Plan, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    plan.save(path)
    again = autoshard.load_plan(path, scanned(), *arguments(ROWS))
    assert again.data.accumulation == plan.data.accumulation
    assert again.traced is not None
    assert plan.traced is not None
    assert str(again.traced.jaxpr) == str(plan.traced.jaxpr)
    require_equal(again.wrap())


def test_plans_over_other_microbatches_are_plans_of_other_programs(
    plan: autoshard.Plan, whole: autoshard.Plan
) -> None:
    assert plan.data.program == whole.data.program
    assert plan.data.planned_program != whole.data.planned_program
    assert whole.data.accumulation is None


def test_the_first_lines_of_the_report_tell_the_microbatches(plan: autoshard.Plan) -> None:
    assert "microbatches    4 of 128 examples each, totals added up" in plan.report()[:600]


def test_the_planned_program_is_exported_with_its_loop(plan: autoshard.Plan) -> None:
    text = plan.stablehlo()
    assert "stablehlo.while" in text


def test_why_speaks_of_the_loop_as_of_any_program(plan: autoshard.Plan) -> None:
    assert "weights" in str(plan.why("state['weights']['up']"))


def test_a_plan_over_microbatches_is_planned_again_for_another_batch(
    plan: autoshard.Plan,
) -> None:
    again = plan.replan(batch=2 * ROWS)
    assert again.data.accumulation is not None
    assert again.data.accumulation.batch_size == 2 * ROWS
    assert again.data.accumulation.microbatches.count == 4


def test_where_the_step_fits_auto_leaves_the_batch_whole() -> None:
    assert planned("auto").data.accumulation is None


@pytest.fixture(scope="module")
def scarce(whole: autoshard.Plan) -> dict[str, float]:
    # With four microbatches this is hardly above the least peak there is: no search closes its gap
    # there, and each takes all the time that it may.
    return {"memory_budget": whole.data.memory.peak_bytes // 3, "time_limit_seconds": 30.0}


def test_where_the_step_does_not_fit_auto_takes_microbatches_with_which_it_does(
    scarce: dict[str, float],
) -> None:
    alone = planned("auto", remat="keep", **scarce)
    assert alone.data.accumulation is not None
    assert alone.data.residuals is None
    assert alone.data.is_feasible
    require_equal(alone.wrap())


@pytest.mark.slow
def test_or_other_residuals_with_which_it_is_faster(scarce: dict[str, float]) -> None:
    found = planned("auto", **scarce)
    assert found.data.is_feasible
    assert found.data.memory.peak_bytes <= scarce["memory_budget"]
    chosen = found.data.accumulation
    if chosen is not None:
        assert chosen.tried[0].count == 1
        fastest = min(one.seconds for one in chosen.tried if one.seconds is not None)
        assert found.data.priced_seconds == pytest.approx(fastest)
    require_equal(found.wrap())


def test_where_time_is_over_a_note_says_which_microbatches_were_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The short search for any choices finds them on a busy machine too.
    monkeypatch.setattr("autoshard.planning.searches.SECONDS_WHEN_INTERRUPTED", 60.0)
    plan = planned("auto", memory_budget=1_000, remat="keep", time_limit_seconds=0.0)
    note = "accumulate: time was over after 1 microbatches; raise time_limit_seconds"
    assert note in plan.data.notes


def test_an_interrupt_while_microbatches_are_priced_leaves_the_plan_of_the_whole_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[bool] = []

    def interrupted(*args: Any, **options: Any) -> Any:
        calls.append(True)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return plan_graph(*args, **options)

    monkeypatch.setattr("autoshard.program_search.plan_graph", interrupted)
    plan = autoshard.optimize(
        loss, *OF_LOSS, **HOST, accumulate="auto", memory_budget=1_000, remat="keep"
    )
    assert len(calls) == 2
    assert plan.data.accumulation is None


@pytest.mark.slow
def test_microbatches_and_residuals_are_chosen_in_one_plan(plan: autoshard.Plan) -> None:
    arguments_, peak = plan.data.memory.argument_bytes, plan.data.memory.peak_bytes
    tight = planned(4, memory_budget=arguments_ + (peak - arguments_) * 2 // 5)
    assert tight.data.is_feasible
    assert tight.data.residuals is not None
    assert tight.data.accumulation is not None
    require_equal(tight.wrap())


@pytest.mark.parametrize("step", [unrolled(), scanned(jax.checkpoint(layer))])
def test_layers_of_any_form_run_over_microbatches(step: Any) -> None:
    require_equal(planned(8, step).jit(donate_argnums=()), step)


def test_a_loss_whose_state_is_not_given_back_is_planned_by_its_products() -> None:
    plan = autoshard.optimize(loss, *OF_LOSS, **HOST, accumulate=2)
    assert plan.data.accumulation is not None
    assert plan.data.accumulation.microbatches.dims == (None, None, 0)
    for before, after in zip(
        jax.tree.leaves(loss(*OF_LOSS)), jax.tree.leaves(plan.wrap()(*OF_LOSS)), strict=True
    ):
        np.testing.assert_allclose(before, after, rtol=1e-5)


BAD: dict[str, tuple[Any, str]] = {
    "no divisor": (7, "7 microbatches do not divide a batch of 512 examples"),
    "zero": (0, "accumulate is 0, which is no number of microbatches"),
    "negative": (-2, "accumulate is -2, which is no number of microbatches"),
    "text": ("four", "accumulate is 'four', which is no number of microbatches"),
    "truth": (True, "accumulate is True, which is no number of microbatches"),
    "fraction": (2.0, "accumulate is 2.0, which is no number of microbatches"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_number_of_microbatches_is_refused(name: str) -> None:
    said, message = BAD[name]
    with pytest.raises(InputError) as caught:
        planned(said)
    assert caught.value.what == message


def coupled() -> Any:
    return scanned(lambda x, w: layer(x - jnp.mean(x, 0), w))


def test_a_step_that_takes_examples_together_is_refused_with_its_line() -> None:
    with pytest.raises(InputError, match="the step cannot run over microbatches") as caught:
        planned(4, coupled())
    assert "test_accumulate.py:" in caught.value.where


def test_auto_tells_why_such_a_step_stays_whole() -> None:
    def centred(weights: Any, x: jax.Array) -> Any:
        def loss(w: Any) -> Any:
            hidden = jnp.tanh(x @ w["a"])
            return jnp.mean((hidden - jnp.mean(hidden, 0)) @ w["b"])

        return jax.value_and_grad(loss)(weights)

    found = autoshard.optimize(
        centred, *OF_LOSS, **HOST, accumulate="auto", memory_budget=1_000, remat="keep"
    )
    assert found.data.accumulation is None
    assert any("the step cannot run over microbatches" in note for note in found.data.notes)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt", "llama_scan", "mlp", "unet", "rnn", "embedding"])
def test_real_training_steps_agree_over_microbatches(name: str) -> None:
    workload = get_workload(name)
    plan = autoshard.optimize(
        workload.step,
        workload.state,
        workload.batch,
        mesh=MESH,
        hardware="cpu-host",
        donate_argnums=0,
        baselines=False,
        accumulate=2,
    )
    key = jax.random.key(0)
    state, batch = jax.jit(workload.init)(key), jax.jit(workload.make_batch)(key)
    before = jax.tree.leaves(jax.jit(workload.step)(state, batch))
    after = jax.tree.leaves(plan.jit(donate_argnums=())(state, batch))
    for one, other in zip(before, after, strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=2e-4, atol=2e-3)
