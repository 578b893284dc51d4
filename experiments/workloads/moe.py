"""A mixture-of-experts language model: attention, then experts each token is routed to.

Every sequence is routed on its own: each expert takes at most `capacity` of its tokens, first
choices before second ones, and what does not fit passes by on the residual stream.

Sources: Lepikhin et al. (2020) for dispatch and combine; Fedus et al. (2021) for the balance loss.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

from experiments.workloads.attention import causal_attention
from experiments.workloads.initializers import scaled_normal
from experiments.workloads.megatron import rule_by_path_end
from experiments.workloads.normalization import rms_norm
from experiments.workloads.pinning import pinned
from experiments.workloads.tokens import token_batch
from experiments.workloads.training import training_workload
from experiments.workloads.workload import PyTree, Workload

BALANCE_WEIGHT = 1e-2


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeConfig:
    """Sizes of the model.

    Attributes:
        layers: Number of blocks, each one attention and one mixture.
        d_model: Width of the residual stream.
        heads: Attention heads; divides `d_model`.
        experts: Experts in a mixture.
        top_k: Experts a token is sent to.
        capacity_factor: Places at the experts per place that evenly routed tokens need.
        d_ff: Width inside one expert.
        vocab: Number of token ids.
        seq: Tokens in one sequence.
        batch: Sequences in one step.
        compute_dtype: Type of activations and matmuls; parameters, router and Adam stay float32.
    """

    layers: int = 1
    d_model: int = 64
    heads: int = 8
    experts: int = 8
    top_k: int = 2
    capacity_factor: float = 2.0
    d_ff: int = 128
    vocab: int = 256
    seq: int = 32
    batch: int = 16
    compute_dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.d_model % self.heads:
            raise ValueError(f"d_model={self.d_model} is not a multiple of heads={self.heads}")
        if self.top_k > self.experts:
            raise ValueError(f"top_k={self.top_k} is more than experts={self.experts}")

    @property
    def capacity(self) -> int:
        """Tokens of one sequence that one expert takes."""
        return math.ceil(self.capacity_factor * self.top_k * self.seq / self.experts)


def init_block(key: jax.Array, config: MoeConfig) -> PyTree:
    d_model, d_ff, experts, heads = config.d_model, config.d_ff, config.experts, config.heads
    head_dim = d_model // heads
    q_key, k_key, v_key, o_key, router_key, up_key, down_key = jax.random.split(key, 7)
    return {
        "attn_norm": jnp.ones(d_model),
        "attn": {
            "wq": scaled_normal(q_key, (d_model, heads, head_dim), d_model),
            "wk": scaled_normal(k_key, (d_model, heads, head_dim), d_model),
            "wv": scaled_normal(v_key, (d_model, heads, head_dim), d_model),
            "wo": scaled_normal(o_key, (heads, head_dim, d_model), d_model),
        },
        "moe_norm": jnp.ones(d_model),
        "moe": {
            "router": scaled_normal(router_key, (d_model, experts), d_model),
            "up": scaled_normal(up_key, (experts, d_model, d_ff), d_model),
            "down": scaled_normal(down_key, (experts, d_ff, d_model), d_ff),
        },
    }


def init_params(key: jax.Array, config: MoeConfig) -> PyTree:
    embed_key, head_key, blocks_key = jax.random.split(key, 3)
    return {
        "embed": 0.02 * jax.random.normal(embed_key, (config.vocab, config.d_model)),
        "blocks": [
            init_block(block_key, config)
            for block_key in jax.random.split(blocks_key, config.layers)
        ],
        "norm": jnp.ones(config.d_model),
        "head": scaled_normal(head_key, (config.d_model, config.vocab), config.d_model),
    }


def route(
    router_logits: jax.Array, top_k: int, capacity: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Give each token its places at the experts, and a weight for each.

    Args:
        router_logits: float32[batch, seq, experts].
        top_k: Experts a token asks for.
        capacity: Places at one expert for the tokens of one sequence.

    Returns:
        dispatch: float32[batch, seq, experts, capacity], 1 where a token holds a place, else 0.
        combine: The same with the token's weight for that expert in place of 1.
        balance: float32[], 1 when load is even, more when tokens crowd at few experts.
    """
    batch, seq, num_experts = router_logits.shape
    probabilities = jax.nn.softmax(router_logits, axis=-1)
    weights, experts = jax.lax.top_k(probabilities, top_k)
    weights = weights / jnp.sum(weights, axis=-1, keepdims=True)
    asked = jax.nn.one_hot(experts, num_experts, dtype=jnp.float32)

    # Queue the tokens of a sequence: all first choices, then all second ones.
    queue = jnp.swapaxes(asked, 1, 2).reshape(batch, top_k * seq, num_experts)
    ahead = (jnp.cumsum(queue, axis=1) - queue).reshape(batch, top_k, seq, num_experts)
    place = jnp.sum(jnp.swapaxes(ahead, 1, 2) * asked, axis=-1).astype(jnp.int32)
    # Places beyond the capacity have an all-zero row: such tokens are dropped.
    places = jax.nn.one_hot(place, capacity, dtype=jnp.float32)

    dispatch = jnp.einsum("bske,bskc->bsec", asked, places)
    combine = jnp.einsum("bsk,bske,bskc->bsec", weights, asked, places)
    load = jnp.mean(asked[:, :, 0], axis=(0, 1))
    balance = num_experts * jnp.sum(load * jnp.mean(probabilities, axis=(0, 1)))
    return dispatch, combine, balance


def mixture(x: jax.Array, params: PyTree, config: MoeConfig) -> tuple[jax.Array, jax.Array]:
    router_logits = jnp.einsum("bsd,de->bse", x.astype(jnp.float32), params["router"])
    dispatch, combine, balance = route(router_logits, config.top_k, config.capacity)
    inputs = jnp.einsum("bsec,bsd->ebcd", dispatch.astype(x.dtype), x)
    hidden = jax.nn.gelu(jnp.einsum("ebcd,edf->ebcf", inputs, params["up"].astype(x.dtype)))
    outputs = jnp.einsum("ebcf,efd->ebcd", hidden, params["down"].astype(x.dtype))
    return jnp.einsum("bsec,ebcd->bsd", combine.astype(x.dtype), outputs), balance


def attention(x: jax.Array, params: PyTree) -> jax.Array:
    q = jnp.einsum("bsd,dhe->bshe", x, params["wq"].astype(x.dtype))
    k = jnp.einsum("bsd,dhe->bshe", x, params["wk"].astype(x.dtype))
    v = jnp.einsum("bsd,dhe->bshe", x, params["wv"].astype(x.dtype))
    mixed = causal_attention(q, k, v)
    return jnp.einsum("bshe,hed->bsd", mixed, params["wo"].astype(x.dtype))


def loss_fn(params: PyTree, batch: PyTree, config: MoeConfig) -> jax.Array:
    dtype = jnp.dtype(config.compute_dtype)
    x = pinned(params["embed"][batch["tokens"]].astype(dtype))
    balance = jnp.zeros((), jnp.float32)
    for block in params["blocks"]:
        x = pinned(x + attention(rms_norm(x, block["attn_norm"]), block["attn"]))
        mixed, block_balance = mixture(rms_norm(x, block["moe_norm"]), block["moe"], config)
        x = pinned(x + mixed)
        balance = balance + block_balance
    logits = (rms_norm(x, params["norm"]) @ params["head"].astype(dtype)).astype(jnp.float32)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"])
    return jnp.mean(losses) + BALANCE_WEIGHT * balance / config.layers


MEGATRON = {
    "params['embed']": ("model", None),
    "params['head']": (None, "model"),
    "['attn']['wq']": (None, "model", None),
    "['attn']['wk']": (None, "model", None),
    "['attn']['wv']": (None, "model", None),
    "['attn']['wo']": ("model", None, None),
    "['moe']['up']": ("model", None, None),
    "['moe']['down']": ("model", None, None),
}
"""Heads and vocabulary cut, whole experts dealt out."""


def build(name: str, config: MoeConfig) -> Workload:
    """Build the mixture's training workload."""
    return training_workload(
        name=name,
        init_params=lambda key: init_params(key, config),
        loss_fn=lambda params, batch: loss_fn(params, batch, config),
        make_batch=lambda key: token_batch(
            key, batch=config.batch, seq=config.seq, vocab=config.vocab
        ),
        megatron=rule_by_path_end(MEGATRON),
    )
