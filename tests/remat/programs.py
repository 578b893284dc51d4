"""Small training steps with residuals: scanned and unrolled, as written and rematerialised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from autoshard.remat.joint_program import JointProgram

LAYERS, ROWS, WIDTH, HIDDEN = 4, 8, 16, 32
Step = Callable[..., Any]


def layer(x: jax.Array, w: dict[str, jax.Array]) -> Any:
    """An MLP block with dropout from a key of its own."""
    hidden = jax.nn.gelu(x @ w["up"])
    keep = jax.random.bernoulli(w["key"], 0.9, hidden.shape)
    return x + jnp.where(keep, hidden / 0.9, 0.0) @ w["down"]


def scanned(block: Step = layer) -> Step:
    """A step over stacked weights, which also counts itself."""

    def loss(weights: Any, x: jax.Array, keys: jax.Array) -> Any:
        def body(carry: Any, w: Any) -> tuple[Any, None]:
            return block(carry, w), None

        out, _ = jax.lax.scan(body, x, {**weights, "key": keys})
        return jnp.mean(out**2)

    return _step(loss)


def unrolled(block: Step = layer) -> Step:
    """The same, layer by layer."""

    def loss(weights: Any, x: jax.Array, keys: jax.Array) -> Any:
        for index in range(keys.shape[0]):
            w = {name: value[index] for name, value in weights.items()}
            x = block(x, {**w, "key": keys[index]})
        return jnp.mean(x**2)

    return _step(loss)


def accumulated(block: Step = layer) -> Step:
    """Gradients of two microbatches, summed in a loop around both passes."""

    def loss(weights: Any, x: jax.Array, keys: jax.Array) -> Any:
        out, _ = jax.lax.scan(lambda c, w: (block(c, w), None), x, {**weights, "key": keys})
        return jnp.mean(out**2)

    def step(state: Any, x: jax.Array, key: jax.Array) -> Any:
        keys = jax.random.split(key, LAYERS)

        def micro(total: Any, part: jax.Array) -> tuple[Any, jax.Array]:
            value, grads = jax.value_and_grad(loss)(state["weights"], part, keys)
            return jax.tree.map(jnp.add, total, grads), value

        zeros = jax.tree.map(jnp.zeros_like, state["weights"])
        return jax.lax.scan(micro, zeros, x.reshape(2, -1, WIDTH))

    return step


def _step(loss: Step) -> Step:
    def step(state: Any, x: jax.Array, key: jax.Array) -> Any:
        keys = jax.random.split(key, LAYERS)
        value, grads = jax.value_and_grad(loss)(state["weights"], x, keys)
        weights = jax.tree.map(lambda w, g: w - 0.1 * g, state["weights"], grads)
        return {"weights": weights, "count": state["count"] + 1}, value

    return step


def arguments(rows: int = ROWS) -> tuple[Any, ...]:
    """A state with an integer, a batch, and a key."""
    rng = np.random.default_rng(0)
    weights = {
        "up": jnp.asarray(rng.normal(size=(LAYERS, WIDTH, HIDDEN)) * 0.2, jnp.float32),
        "down": jnp.asarray(rng.normal(size=(LAYERS, HIDDEN, WIDTH)) * 0.2, jnp.float32),
    }
    batch = jnp.asarray(rng.normal(size=(rows, WIDTH)), jnp.float32)
    return {"weights": weights, "count": jnp.int32(3)}, batch, jax.random.key(0)


def leanest(joint: JointProgram) -> list[str]:
    """Names of all that can only be kept."""
    return [
        f"{number}:{name}"
        for number, graph in enumerate(joint.graphs)
        for var, name in graph.names.items()
        if var not in graph.free and not graph.is_recomputable(var)
    ]
