"""Gated experts that tokens are routed to, each with room for so many tokens of a sequence."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from experiments.workloads.initializers import scaled_normal
from experiments.workloads.moe import route
from experiments.workloads.workload import PyTree


def init_experts(key: jax.Array, experts: int, d_model: int, d_ff: int) -> PyTree:
    router_key, gate_key, up_key, down_key = jax.random.split(key, 4)
    return {
        "router": scaled_normal(router_key, (d_model, experts), d_model),
        "gate": scaled_normal(gate_key, (experts, d_model, d_ff), d_model),
        "up": scaled_normal(up_key, (experts, d_model, d_ff), d_model),
        "down": scaled_normal(down_key, (experts, d_ff, d_model), d_ff),
    }


def expert_capacity(seq: int, experts: int, top_k: int, factor: float) -> int:
    """Tokens of one sequence that one expert takes.

    Args:
        seq: Tokens in one sequence.
        experts: Experts in the mixture.
        top_k: Experts a token is sent to.
        factor: Places at the experts per place that evenly routed tokens need.
    """
    return math.ceil(factor * top_k * seq / experts)


def apply_experts(
    x: jax.Array, params: PyTree, *, top_k: int, capacity_factor: float
) -> tuple[jax.Array, jax.Array]:
    """Send each token through its experts, and add up what they say by their weights.

    Args:
        x: Activations [batch, seq, d_model].
        params: What `init_experts` returned.
        top_k: Experts a token is sent to.
        capacity_factor: As for `expert_capacity`.

    Returns:
        Activations of the shape and type of `x`, 0 for tokens that found no place; and how uneven
        the load is, float32[], as `moe.route` says it.
    """
    seq, num_experts = x.shape[1], params["router"].shape[-1]
    capacity = expert_capacity(seq, num_experts, top_k, capacity_factor)
    router_logits = jnp.einsum("bsd,de->bse", x.astype(jnp.float32), params["router"])
    dispatch, combine, balance = route(router_logits, top_k, capacity)
    inputs = jnp.einsum("bsec,bsd->ebcd", dispatch.astype(x.dtype), x)
    gate = jax.nn.silu(jnp.einsum("ebcd,edf->ebcf", inputs, params["gate"].astype(x.dtype)))
    up = jnp.einsum("ebcd,edf->ebcf", inputs, params["up"].astype(x.dtype))
    outputs = jnp.einsum("ebcf,efd->ebcd", gate * up, params["down"].astype(x.dtype))
    return jnp.einsum("bsec,ebcd->bsd", combine.astype(x.dtype), outputs), balance
