"""How weights start."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp


def scaled_normal(key: jax.Array, shape: tuple[int, ...], fan_in: int) -> jax.Array:
    """Draw float32 weights that keep the variance of `fan_in` summed inputs.

    Args:
        key: A PRNG key.
        shape: The weight's shape.
        fan_in: How many inputs one output sums.

    Returns:
        float32[shape], normal with standard deviation `fan_in ** -0.5`.
    """
    return jax.random.normal(key, shape, jnp.float32) / math.sqrt(fan_in)
