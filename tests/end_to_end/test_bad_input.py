"""What a user gets wrong, and what the message says to do about it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import autoshard

X = jax.ShapeDtypeStruct((16, 32), jnp.float32)
W = jax.ShapeDtypeStruct((32, 30), jnp.float32)


def layer(x: Any, w: Any) -> Any:
    return jnp.tanh(x @ w)


def plan(**options: Any) -> autoshard.Plan:
    return autoshard.optimize(
        layer, X, W, **{"mesh": "data=2,model=4", "hardware": "cpu-host", **options}
    )


def test_an_unknown_axis_is_named_beside_the_known_ones() -> None:
    with pytest.raises(autoshard.AutoshardError) as caught:
        plan(in_shardings=(P("batch"), P()))
    assert '"batch"' in caught.value.what
    assert "data" in str(caught.value)
    assert caught.value.fix


def test_a_pinned_dimension_that_does_not_divide_is_refused_with_the_next_size_that_does() -> None:
    with pytest.raises(autoshard.AutoshardError) as caught:
        plan(in_shardings=(P(), P(None, "model")))
    assert "30" in caught.value.what
    assert "4" in caught.value.what
    assert "`w`" in caught.value.where or "w" in caught.value.where
    assert "32" in caught.value.fix


def test_two_pins_on_one_donated_state_name_both_sides() -> None:
    def step(state: Any, x: Any) -> Any:
        return {"w": state["w"] + x.sum()}, x.mean()

    state = {"w": jax.ShapeDtypeStruct((32, 32), jnp.float32)}
    with pytest.raises(autoshard.ConstraintError) as caught:
        autoshard.optimize(
            step,
            state,
            X,
            mesh="data=2,model=4",
            hardware="cpu-host",
            in_shardings=({"w": P("data")}, P()),
            out_shardings=({"w": P("model")}, P()),
            donate_argnums=0,
        )
    text = str(caught.value)
    assert "state['w']" in text
    assert "result[0]['w']" in text


def test_a_mesh_larger_than_the_machine_can_be_planned_for_but_not_run_on() -> None:
    planned = plan(mesh="data=16,model=2")
    assert planned.data.is_feasible
    with pytest.raises(autoshard.InputError) as caught:
        _ = planned.in_shardings
    assert "32" in caught.value.what
    assert "8" in caught.value.what
    assert caught.value.fix


def test_a_budget_too_small_says_by_how_much_where_and_what_weighs_most() -> None:
    planned = plan(memory_budget=1000)
    assert not planned.data.is_feasible
    memory = planned.data.memory
    assert memory.peak_bytes > 1000
    assert memory.live_at_peak
    report = planned.report()
    assert "infeasible" in report
    assert memory.peak_where.split()[0] in report
    with pytest.raises(autoshard.PlanError) as caught:
        planned.jit()
    assert f"{memory.peak_bytes - 1000:,}" in caught.value.what


def test_a_plan_for_another_program_says_what_differs(tmp_path: Path) -> None:
    plan().save(tmp_path / "plan.json")

    def other(x: Any, w: Any) -> Any:
        return jnp.sin(x @ w)

    loaded = autoshard.load_plan(tmp_path / "plan.json", other)
    with pytest.raises(autoshard.PlanError) as caught:
        loaded.jit()(jnp.ones((16, 32)), jnp.ones((32, 30)))
    assert "another program" in caught.value.what
    assert "sin" in caught.value.what


def test_a_plan_for_other_shapes_names_the_argument(tmp_path: Path) -> None:
    plan().save(tmp_path / "plan.json")
    loaded = autoshard.load_plan(tmp_path / "plan.json", layer)
    with pytest.raises(autoshard.PlanError) as caught:
        loaded.jit()(jnp.ones((8, 32)), jnp.ones((32, 30)))
    assert "x" in caught.value.what
    assert "float32[8,32]" in caught.value.what.replace(" ", "")


def test_a_cut_plan_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    plan().save(path)
    path.write_text(path.read_text()[:-100])
    with pytest.raises(autoshard.PlanError) as caught:
        autoshard.load_plan(path)
    assert "plan.json" in str(caught.value)


def test_a_file_that_is_no_plan_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(json.dumps({"hello": 1}))
    with pytest.raises(autoshard.PlanError):
        autoshard.load_plan(path)


def test_a_plan_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises((autoshard.AutoshardError, OSError)):
        plan().save(tmp_path / "missing" / "plan.json")
    assert list(tmp_path.iterdir()) == []


def test_a_function_that_does_not_trace_keeps_the_users_line() -> None:
    def broken(x: Any) -> Any:
        return x @ jnp.ones((5, 5))

    with pytest.raises(autoshard.ExportError) as caught:
        autoshard.optimize(broken, X, mesh="data=8", hardware="cpu-host")
    assert "broken" in str(caught.value)
    assert "test_bad_input.py" in str(caught.value)


@pytest.mark.parametrize("mesh", ["", "data", "data=0", "data=2,data=4", "data=two"])
def test_a_mesh_that_is_none_is_refused(mesh: str) -> None:
    with pytest.raises(autoshard.InputError) as caught:
        plan(mesh=mesh)
    assert caught.value.fix


@pytest.mark.parametrize("budget", ["much", -1, "0GB", 0, True, float("nan"), "12 parsecs"])
def test_a_budget_that_is_none_is_refused(budget: Any) -> None:
    with pytest.raises(autoshard.InputError) as caught:
        plan(memory_budget=budget)
    assert "16GiB" in caught.value.fix


def test_an_unknown_machine_is_refused_with_the_closest_names() -> None:
    with pytest.raises(Exception, match="tpu-v5p"):
        plan(hardware="tpu-v5")
