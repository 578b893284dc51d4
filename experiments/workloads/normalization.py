"""Normalisation layers: statistics in float32, results in the type of the input."""

from __future__ import annotations

import jax
import jax.numpy as jnp

EPSILON = 1e-5


def layer_norm(x: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
    """Normalise the last dimension to mean 0 and variance 1, then scale and shift it.

    Args:
        x: Activations [..., d].
        scale: float32[d].
        bias: float32[d].

    Returns:
        Activations [..., d] of the type of `x`.
    """
    wide = x.astype(jnp.float32)
    mean = jnp.mean(wide, axis=-1, keepdims=True)
    variance = jnp.var(wide, axis=-1, keepdims=True)
    normal = (wide - mean) * jax.lax.rsqrt(variance + EPSILON)
    return (normal * scale + bias).astype(x.dtype)


def rms_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Divide the last dimension by its root mean square, then scale it.

    Args:
        x: Activations [..., d].
        scale: float32[d].

    Returns:
        Activations [..., d] of the type of `x`.
    """
    wide = x.astype(jnp.float32)
    mean_square = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
    return (wide * jax.lax.rsqrt(mean_square + EPSILON) * scale).astype(x.dtype)


def group_norm(x: jax.Array, scale: jax.Array, bias: jax.Array, num_groups: int) -> jax.Array:
    """Normalise each image over its pixels and one group of channels at a time.

    Args:
        x: Activations [batch, height, width, channels].
        scale: float32[channels].
        bias: float32[channels].
        num_groups: A divisor of `channels`.

    Returns:
        Activations [batch, height, width, channels] of the type of `x`.
    """
    batch, height, width, channels = x.shape
    wide = x.astype(jnp.float32)
    grouped = wide.reshape(batch, height, width, num_groups, channels // num_groups)
    mean = jnp.mean(grouped, axis=(1, 2, 4), keepdims=True)
    variance = jnp.var(grouped, axis=(1, 2, 4), keepdims=True)
    normal = ((grouped - mean) * jax.lax.rsqrt(variance + EPSILON)).reshape(x.shape)
    return (normal * scale + bias).astype(x.dtype)
