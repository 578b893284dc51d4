"""Layers of a weight matrix `w` and a bias `b`, of which tests stack equal ones."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def relu(layer: Any, x: Any) -> Any:
    return jax.nn.relu(x @ layer["w"] + layer["b"])


def norm(layer: Any, x: Any) -> Any:
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) + layer["b"]


def residual(layer: Any, x: Any) -> Any:
    return x + jnp.tanh(x @ layer["w"]) * jnp.mean(layer["b"])
