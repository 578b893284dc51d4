"""Experts that drop no token: tokens sorted by expert, one ragged matmul over all of them.

Source: Gale et al. (2022).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from experiments.workloads import expert_choice
from experiments.workloads.expert_choice import ChoiceConfig
from experiments.workloads.workload import PyTree, Workload


def mixture(x: jax.Array, params: PyTree, config: ChoiceConfig) -> jax.Array:
    """Send every token of the batch to the experts it wants the most."""
    tokens = x.reshape(-1, x.shape[-1])
    wanted = jax.nn.softmax(tokens.astype(jnp.float32) @ params["router"], axis=-1)
    weights, experts = jax.lax.top_k(wanted, config.top_k)
    order = jnp.argsort(experts.reshape(-1))
    sizes = jnp.bincount(experts.reshape(-1), length=config.experts).astype(jnp.int32)
    sources = order // config.top_k
    inputs = tokens[sources]
    gate = jax.nn.silu(jax.lax.ragged_dot(inputs, params["gate"].astype(x.dtype), sizes))
    up = jax.lax.ragged_dot(inputs, params["up"].astype(x.dtype), sizes)
    outputs = jax.lax.ragged_dot(gate * up, params["down"].astype(x.dtype), sizes)
    outputs = outputs * weights.reshape(-1)[order, None].astype(x.dtype)
    return jnp.zeros_like(tokens).at[sources].add(outputs).reshape(x.shape)


def build(name: str, config: ChoiceConfig) -> Workload:
    """Build the training workload of a model that drops no token."""
    return expert_choice.build(name, config, mixture)
