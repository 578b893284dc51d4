"""Decoding with a donated cache has the hand plans that people write for it."""

from __future__ import annotations

import jax
import jax.numpy as jnp

import autoshard
from autoshard.planning.hand_plans import hand_plans


def decode(
    params: dict[str, jax.Array], cache: jax.Array, x: jax.Array
) -> tuple[jax.Array, jax.Array]:
    keys = x @ params["k"]
    cache = cache.at[:, 3].set(jnp.stack([keys, keys]))
    scores = jnp.einsum("bd,lsbd->lbs", x @ params["q"], jnp.swapaxes(cache, 1, 2).swapaxes(1, 2))
    return cache, jnp.einsum("lbs,lsbd->bd", scores, cache) @ params["o"]


def test_weights_are_parameters_and_the_cache_is_cut_along_its_examples() -> None:
    weights = {name: jax.ShapeDtypeStruct((64, 64), jnp.float32) for name in "kqo"}
    cache = jax.ShapeDtypeStruct((2, 16, 32, 64), jnp.float32)  # layers, positions, examples, width
    x = jax.ShapeDtypeStruct((32, 64), jnp.float32)
    plan = autoshard.optimize(
        decode, weights, cache, x, mesh="data=8", hardware="cpu-host", donate_argnums=1
    )
    solution = plan.solution
    assert solution is not None
    parts = solution.encoded.parts
    plans = hand_plans(solution.graph, parts, solution.encoder.wishes.alike)
    everything = tuple(range(len(parts.axes)))
    whole, rows = ((), ()), (everything, ())
    cached = ((), (), everything, ())
    assert plans["data parallel"] == (whole, whole, whole, cached, rows)
    assert plans["fsdp"] == (rows, rows, rows, cached, rows)
    assert {"data parallel", "fsdp"} <= {row.name for row in plan.data.baselines}
