"""Residuals in host memory, and what the loop that brings them back holds beside."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

import autoshard
from autoshard import Offload, Recompute

LAYERS, TIMES, ROWS, WIDTH, STATES = 4, 256, 64, 512, 16
STACK = f"f32[{TIMES}, {ROWS}, {WIDTH}, {STATES}]"
"""The states of a layer at all times, which its gradient reads."""


def recurrent(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
    """A layer with a scan along time in it."""

    def tick(state: jax.Array, at: jax.Array) -> tuple[jax.Array, jax.Array]:
        state = jax.nn.sigmoid(w["decay"]) * state + at[..., None]
        return state, (state**2).sum(-1)

    up = checkpoint_name(x @ w["up"], "up")
    zeros = jnp.zeros((x.shape[0], WIDTH, STATES))
    _, read = jax.lax.scan(tick, zeros, jnp.swapaxes(up, 0, 1))
    read = checkpoint_name(read, "read")
    return x + jnp.tanh(jnp.swapaxes(read, 0, 1)) @ w["down"], None


def planned(*terms: Any) -> autoshard.Plan:
    def step(weights: Any, x: jax.Array) -> Any:
        def loss(weights: Any) -> Any:
            return jnp.mean(jax.lax.scan(recurrent, x, weights)[0] ** 2)

        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights))

    def of(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    matrices = {name: of(LAYERS, WIDTH, WIDTH) for name in ("up", "down")}
    return autoshard.optimize(
        step,
        {**matrices, "decay": of(LAYERS, WIDTH, STATES)},
        of(ROWS, TIMES, WIDTH),
        mesh="data=8",
        hardware="tpu-v5e",
        donate_argnums=0,
        memory_budget=400_000_000,
        baselines=False,
        schedules="none",
        constraints=[Recompute("read"), *terms],
    )


def test_stacks_beside_what_comes_from_the_host_are_there_twice() -> None:
    """The last run of the loop is peeled off, and its stacks allocated before the loop."""
    memory = planned(Offload("up")).data.memory
    held = [live.name for live in memory.live_at_peak if live.type_text == STACK]
    assert memory.host_bytes > 0
    assert {"while", "working memory of while"} <= {*held}


@pytest.mark.slow
def test_they_are_there_twice_as_compiled() -> None:
    pytest.importorskip("libtpu")
    memory = planned(Offload("up")).verify("v5e:2x4").memory
    assert memory is not None
    assert memory.host_bytes > 0
    assert memory.compiled_bytes <= 1.05 * memory.predicted_bytes
