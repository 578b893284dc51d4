"""A plan made again after a change starts from its answer, and is as good as one made anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autoshard
from autoshard import api
from autoshard.planning.searches import SolveOptions
from autoshard.planning.warm_start import WarmStart
from autoshard.sharding import format_sharding
from solvers import evaluate

GAP = 0.01
ASKED: dict[str, Any] = {
    "mesh": "data=2,model=4",
    "hardware": "tpu-v5e",
    "donate_argnums": 0,
    "relative_gap": GAP,
    "baselines": False,
}
F32 = jnp.float32
PARAMS = {
    name: jax.ShapeDtypeStruct(shape, F32)
    for name, shape in {"up": (512, 2048), "down": (2048, 512)}.items()
}


def batch(rows: int) -> Any:
    return {"x": jax.ShapeDtypeStruct((rows, 512), F32), "y": jax.ShapeDtypeStruct((rows,), F32)}


def step(params: Any, batch: Any) -> Any:
    def loss(params: Any) -> Any:
        hidden = jnp.tanh(batch["x"] @ params["up"]) @ params["down"]
        return jnp.mean((hidden.sum(1) - batch["y"]) ** 2)

    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))


def planned(rows: int = 256, **options: Any) -> autoshard.Plan:
    return autoshard.optimize(step, PARAMS, batch(rows), **{**ASKED, **options})


def assert_as_good(found: autoshard.Plan, anew: autoshard.Plan) -> None:
    assert found.data.program.fingerprint == anew.data.program.fingerprint
    assert found.data.memory_budget == anew.data.memory_budget
    assert found.data.solver.status in ("optimal", "within gap")
    best = max(found.data.solver.bound_seconds, anew.data.solver.bound_seconds)
    assert found.data.solver.seconds <= best / (1 - GAP) * (1 + 1e-9)


def no_trace(*_: Any, **__: Any) -> Any:
    raise AssertionError("traced again")


@pytest.mark.parametrize(
    "change",
    [
        {"memory_budget": "24MiB"},
        {"constraints": {"params['up']": jax.P("model")}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_another_limit_or_pin_needs_no_trace(
    change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, anew = planned(), planned(**change)
    monkeypatch.setattr(api, "trace", no_trace)
    found = before.replan(**change)
    assert "trace and lower" not in found.data.stage_seconds
    assert_as_good(found, anew)


def test_constraints_are_added_to_those_of_the_plan() -> None:
    before = planned(constraints={"params['up']": jax.P(None, "model")})
    found = before.replan(constraints={"batch['x']": jax.P("data")})
    by_name = {tensor.name: format_sharding(tensor.sharding) for tensor in found.data.arguments}
    assert by_name["params['up']"] == '<@mesh, [{}, {"model"}]>'
    assert by_name["batch['x']"] == '<@mesh, [{"data"}, {}]>'
    third = found.replan(memory_budget=None)
    assert [term.text for term in third.data.asked] == [term.text for term in found.data.asked]


def test_another_batch_size_is_said_as_a_number_or_as_arguments() -> None:
    before, anew = planned(), planned(1024)
    for found in (before.replan(batch=1024), before.replan(PARAMS, batch(1024))):
        assert [t.shape for t in found.data.arguments] == [t.shape for t in anew.data.arguments]
        assert_as_good(found, anew)


def test_another_machine_is_traced_for() -> None:
    found = planned().replan(hardware="tpu-v5p")
    assert "trace and lower" in found.data.stage_seconds
    assert_as_good(found, planned(hardware="tpu-v5p"))


def test_another_mesh_starts_from_the_shardings_it_can_have() -> None:
    for mesh in ("data=4,model=2", "data=8", "rows=2,columns=4"):
        assert_as_good(planned().replan(mesh=mesh), planned(mesh=mesh))


def test_a_replanned_step_runs() -> None:
    before = autoshard.optimize(step, PARAMS, batch(64), **{**ASKED, "hardware": "cpu-host"})
    found = before.replan(batch=32)
    params = jax.tree.map(lambda leaf: jnp.full(leaf.shape, 0.01, F32), PARAMS)
    rows = {"x": np.ones((32, 512), np.float32), "y": np.ones(32, np.float32)}
    wanted = step(params, rows)
    np.testing.assert_allclose(found.jit()(params, rows)["up"], wanted["up"], rtol=1e-5)


def test_a_loaded_plan_is_a_start_too(tmp_path: Path) -> None:
    before = planned()
    before.save(tmp_path / "plan.json")
    loaded = autoshard.load_plan(tmp_path / "plan.json")
    assert_as_good(planned(start=loaded), before)
    with pytest.raises(autoshard.PlanError, match="does not know its call"):
        loaded.replan(batch=3)


def test_a_plan_given_to_its_own_problem_is_chosen_again() -> None:
    before = planned()
    assert before.solution is not None
    start = WarmStart.of(before.data)
    assert start is not None
    encoded = before.solution.encoded
    choices = start.choices(encoded, SolveOptions())
    assert choices is not None
    assert evaluate(encoded.problem, choices).cost <= before.solution.cost


def test_the_call_of_a_plan_keeps_no_arrays() -> None:
    params = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), PARAMS)
    plan = autoshard.optimize(step, params, batch(64), **ASKED)
    assert plan.call is not None
    leaves = jax.tree.leaves((plan.call.args, plan.call.options.kwargs))
    assert leaves
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)


def refusal(**changes: Any) -> autoshard.InputError:
    with pytest.raises(autoshard.InputError) as caught:
        planned().replan(**changes)
    return caught.value


def test_changes_that_say_nothing_are_refused() -> None:
    assert refusal(memory="2GiB").fix == "did you mean memory_budget?"
    assert refusal(batch=0).what == "a batch of 0 has no examples"
    with pytest.raises(autoshard.InputError, match="both say how large"):
        planned().replan(PARAMS, batch(8), batch=8)


def test_without_a_state_nothing_tells_parameters_from_examples() -> None:
    plan = planned(donate_argnums=())
    with pytest.raises(autoshard.InputError, match="nothing in the program tells"):
        plan.replan(batch=32)


def test_a_program_without_products_does_not_tell_its_examples() -> None:
    plan = autoshard.optimize(jnp.tanh, batch(64)["x"], **ASKED)
    with pytest.raises(autoshard.InputError, match="nothing in the program tells"):
        plan.replan(batch=32)
