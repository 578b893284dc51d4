"""Functions of typed PRNG keys are planned and run; a key's words stay together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import autoshard


def dropout_step(state: dict[str, Any], x: jax.Array) -> tuple[dict[str, Any], jax.Array]:
    key, now = jax.random.split(state["key"])
    keep = jax.random.bernoulli(now, 0.5, x.shape)

    def loss(w: jax.Array) -> Any:
        return jnp.mean((jnp.where(keep, x, 0) @ w) ** 2)

    value, gradient = jax.value_and_grad(loss)(state["w"])
    return {"w": state["w"] - 0.1 * gradient, "key": key}, value


@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg"])
@pytest.mark.parametrize("mesh", ["data=2", "data=2,model=4"])
def test_a_step_that_carries_its_key_runs_as_it_does_unsharded(
    mesh: str, implementation: str
) -> None:
    def init() -> dict[str, Any]:
        return {"w": jnp.full((64, 32), 0.1), "key": jax.random.key(0, impl=implementation)}

    x = np.random.default_rng(0).normal(size=(16, 64)).astype(np.float32)
    plan = autoshard.optimize(
        dropout_step, jax.eval_shape(init), x, mesh=mesh, hardware="cpu-host", donate_argnums=0
    )
    assert {tensor.name: tensor.shape for tensor in plan.data.arguments} == {
        "state['key']": (),
        "state['w']": (64, 32),
        "x": (16, 64),
    }
    state, value = plan.jit()(plan.init(init)(), plan.shard(x, argument=1))
    expected, expected_value = jax.jit(dropout_step)(init(), x)
    np.testing.assert_allclose(value, expected_value, rtol=1e-5)
    np.testing.assert_allclose(state["w"], expected["w"], rtol=1e-5)
    np.testing.assert_array_equal(
        jax.random.key_data(state["key"]), jax.random.key_data(expected["key"])
    )


def test_an_array_of_keys_is_cut_between_keys_and_never_within_one(tmp_path: Path) -> None:
    def draw(keys: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.vmap(lambda key: jax.random.normal(key, (8,)))(keys), keys

    keys = jax.random.split(jax.random.key(1), 8)
    plan = autoshard.optimize(
        draw, keys, mesh="data=2,model=4", hardware="cpu-host", in_shardings=P("data")
    )
    assert plan.in_shardings[0].spec == P("data")
    plan.save(tmp_path / "plan.json")
    loaded = autoshard.load_plan(tmp_path / "plan.json", draw)
    drawn, same = loaded.jit()(keys)
    np.testing.assert_allclose(drawn, draw(keys)[0], rtol=1e-6)
    np.testing.assert_array_equal(jax.random.key_data(same), jax.random.key_data(keys))
