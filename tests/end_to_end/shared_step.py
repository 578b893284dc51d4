"""A training step that every process of a program knows."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

ROWS, WIDTH, HIDDEN = 64, 32, 128


def init(key: jax.Array) -> dict[str, Any]:
    first, second = jax.random.split(key)
    params = {
        "w1": 0.1 * jax.random.normal(first, (WIDTH, HIDDEN)),
        "w2": 0.1 * jax.random.normal(second, (HIDDEN, WIDTH)),
    }
    return {"params": params, "moments": jax.tree.map(jnp.zeros_like, params)}


def batch(seed: int) -> np.ndarray[Any, Any]:
    found = np.random.default_rng(seed).normal(size=(ROWS, WIDTH))
    return found.astype(np.float32)


def train_step(state: dict[str, Any], x: jax.Array) -> tuple[dict[str, Any], jax.Array]:
    def loss(params: dict[str, Any]) -> jax.Array:
        mean: jax.Array = jnp.mean((jnp.tanh(x @ params["w1"]) @ params["w2"] - x) ** 2)
        return mean

    value, grads = jax.value_and_grad(loss)(state["params"])
    moments = jax.tree.map(lambda m, g: 0.9 * m + g, state["moments"], grads)
    params = jax.tree.map(lambda p, m: p - 0.1 * m, state["params"], moments)
    return {"params": params, "moments": moments}, value
