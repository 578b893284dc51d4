"""Steps over batches, and their programs over microbatches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src.core import check_jaxpr  # private; checked on jax 0.10.2
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from autoshard.accumulation.accumulated import accumulated
from autoshard.accumulation.choice import Microbatches

ROWS, WIDTH, CLASSES = 12, 6, 5


def over(step: Callable[..., Any], args: Sequence[Any], batch: Sequence[int], count: int) -> Any:
    """The program of a step over microbatches; these of its arguments hold examples first."""
    closed = jax.make_jaxpr(step)(*args)
    dims = [
        0 if position in batch else None
        for position, argument in enumerate(args)
        for _ in jax.tree.leaves(argument)
    ]
    found = accumulated(closed, Microbatches(count=count, dims=tuple(dims)))
    check_jaxpr(found.jaxpr)
    return found


def require_equal(
    step: Callable[..., Any], args: Sequence[Any], batch: Sequence[int], count: int = 3
) -> ClosedJaxpr:
    """Compare a step with itself over microbatches; returns its program over these."""
    found: ClosedJaxpr = over(step, args, batch, count)
    expected = jax.tree.leaves(jax.jit(step)(*args))
    results = jax.jit(jaxpr_as_fun(found))(*jax.tree.leaves(args))
    for before, after in zip(expected, results, strict=True):
        assert before.dtype == after.dtype
        np.testing.assert_allclose(
            np.asarray(before, float), np.asarray(after, float), rtol=1e-5, atol=1e-6
        )
    return found


def f32(*shape: int, seed: int = 0) -> Any:
    return jnp.array(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def weights() -> dict[str, jax.Array]:
    return {"up": f32(WIDTH, WIDTH, seed=1), "down": f32(WIDTH, CLASSES, seed=2)}


def trained(loss: Callable[..., Any]) -> Callable[..., Any]:
    """A step of Adam, which counts itself, on a loss of weights and a batch."""

    def step(state: Any, *batch: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(state["w"], *batch)
        count = state["count"] + 1
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["m"], grads)
        second = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, state["v"], grads)
        moved = jax.tree.map(
            lambda w, m, v: w - 0.1 * m / (jnp.sqrt(v) + 1e-2), state["w"], first, second
        )
        return {"w": moved, "m": first, "v": second, "count": count}, value

    return step


def state() -> dict[str, Any]:
    zeros = jax.tree.map(jnp.zeros_like, weights())
    return {"w": weights(), "m": zeros, "v": zeros, "count": jnp.int32(3)}


def logits(w: Any, x: jax.Array) -> Any:
    return jnp.tanh(x @ w["up"]) @ w["down"]
