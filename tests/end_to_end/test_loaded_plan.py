"""A plan made once and loaded elsewhere does everything the first one did."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autoshard

STATE = {"w": jax.ShapeDtypeStruct((64, 64), jnp.float32)}
X = jax.ShapeDtypeStruct((32, 64), jnp.float32)


def step(state: Any, scale: int, x: Any) -> Any:
    gradient = jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w) ** 2) * scale)(state["w"])
    return {"w": state["w"] - 0.1 * gradient}, jnp.sum(x)


def saved(tmp_path: Path) -> Path:
    plan = autoshard.optimize(
        step,
        STATE,
        3,
        X,
        mesh="data=2,model=4",
        hardware="cpu-host",
        donate_argnums=0,
        static_argnums=1,
        baselines=False,
    )
    plan.save(tmp_path / "plan.json")
    return tmp_path / "plan.json"


def init() -> dict[str, jax.Array]:
    return {"w": jnp.ones((64, 64))}


def test_a_loaded_plan_donates_and_keeps_static_what_the_first_one_did(tmp_path: Path) -> None:
    loaded = autoshard.load_plan(saved(tmp_path), step)
    compiled = loaded.jit().lower(STATE, 3, X).compile()
    memory = compiled.memory_analysis()
    assert memory is not None
    tensor = loaded.data.arguments[0]
    assert memory.alias_size_in_bytes == tensor.local_bytes


def test_with_its_arguments_a_loaded_plan_can_make_and_place_the_state(tmp_path: Path) -> None:
    loaded = autoshard.load_plan(saved(tmp_path), step, STATE, 3, X)
    state = loaded.init(init)()
    x = loaded.shard(np.ones((32, 64), np.float32), argument=2)
    assert state["w"].sharding == loaded.in_shardings[0]["w"]
    new, total = loaded.jit()(state, 3, x)
    alone, _ = jax.jit(step, static_argnums=1)(init(), 3, jnp.ones((32, 64)))
    np.testing.assert_allclose(np.asarray(new["w"]), np.asarray(alone["w"]), rtol=1e-5)
    assert float(total) == 32 * 64


def test_loading_with_other_arguments_says_what_differs(tmp_path: Path) -> None:
    other = jax.ShapeDtypeStruct((16, 64), jnp.float32)
    with pytest.raises(autoshard.PlanError) as caught:
        autoshard.load_plan(saved(tmp_path), step, STATE, 3, other)
    assert "float32[16,64]" in caught.value.what.replace(" ", "")


def test_a_plan_knows_its_function_after_that_was_traced_under_a_mesh() -> None:
    """JAX keeps the trace of `jnp.where` with the mesh it first saw, which is no other program."""

    def fn(x: jax.Array) -> Any:
        return jnp.where(x > 0, jax.nn.relu(x), jnp.var(x)) @ x.T

    x = jnp.arange(64.0).reshape(8, 8)
    mesh = jax.make_mesh((8,), ("p",), axis_types=(jax.sharding.AxisType.Auto,))
    jax.clear_caches()
    with jax.set_mesh(mesh):
        jax.jit(fn)(x)
    plan = autoshard.optimize(fn, x, mesh="p=8", hardware="cpu-host", baselines=False)
    np.testing.assert_allclose(plan.jit()(x), fn(x), rtol=1e-6)


@pytest.mark.parametrize("has_devices", [True, False])
def test_a_plan_knows_a_function_that_holds_a_mesh_of_devices(
    has_devices: bool, tmp_path: Path
) -> None:
    # JAX reshards between meshes that differ in nothing but whether they name a kind of device.
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)

    def loss(x: Any, w: Any) -> Any:
        specs = jax.sharding.PartitionSpec("data", "model")
        y = jax.shard_map(jnp.sin, mesh=mesh, in_specs=specs, out_specs=specs)(x @ w)
        return jax.lax.cond(y[0, 0] > 0, jnp.sum, jnp.max, jnp.tanh(y))

    step = jax.value_and_grad(loss, argnums=(0, 1))
    x, w = jnp.ones((8, 4)), jnp.ones((4, 16))
    planned_for = mesh if has_devices else "data=2,model=4"
    plan = autoshard.optimize(step, x, w, mesh=planned_for, hardware="cpu-host", baselines=False)
    plan.save(tmp_path / "plan.json")
    loaded = autoshard.load_plan(tmp_path / "plan.json", step, x, w)
    for known in (plan, loaded):
        found, expected = known.jit()(x, w), step(x, w)
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5), found, expected)


def test_a_step_called_with_a_default_that_was_left_out_when_planned_says_so() -> None:
    def scaled(x: Any, scale: Any = 2.0) -> Any:
        return x * scale

    planned = autoshard.optimize(
        scaled,
        jnp.ones((8, 4)),
        mesh="data=8",
        hardware="cpu-host",
        in_shardings=(jax.sharding.PartitionSpec("data"),),
        baselines=False,
    ).jit()
    with pytest.raises(autoshard.PlanError) as caught:
        planned(jnp.ones((8, 4)), 3.0)
    assert caught.value.what == (
        "the plan was made for another program: it has 2 argument arrays, the plan was made for 1"
    )
