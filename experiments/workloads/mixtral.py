"""A Mixtral-like model: a Llama whose MLPs are mixtures of gated experts.

Source: Jiang et al. (2024), without sliding windows; experts with a capacity, as in `experts`.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

from experiments.workloads.experts import apply_experts, init_experts
from experiments.workloads.initializers import scaled_normal
from experiments.workloads.layer_stack import apply_layers, init_layers
from experiments.workloads.llama import attention, rotary_angles
from experiments.workloads.megatron import rule_by_path_end
from experiments.workloads.normalization import rms_norm
from experiments.workloads.tokens import token_batch
from experiments.workloads.training import training_workload
from experiments.workloads.workload import PyTree, Workload

BALANCE_WEIGHT = 1e-2


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtralConfig:
    """Sizes and form of the model.

    Attributes:
        layers: Number of blocks, each one attention and one mixture.
        d_model: Width of the residual stream.
        heads: Query heads; divides `d_model`, and `d_model / heads` is even.
        num_kv_heads: Key and value heads; divides `heads`.
        experts: Experts in a mixture.
        top_k: Experts a token is sent to.
        capacity_factor: Places at the experts per place that evenly routed tokens need.
        d_ff: Width inside one expert.
        vocab: Number of token ids.
        seq: Tokens in one sequence.
        batch: Sequences in one step.
        rope_theta: Base of the rotary wavelengths.
        scan: Stack the blocks and scan over them, else unroll.
        remat: Compute each block again in the backward pass.
        compute_dtype: Type of activations and matmuls; parameters, router and Adam stay float32.
    """

    layers: int = 2
    d_model: int = 64
    heads: int = 8
    num_kv_heads: int = 4
    experts: int = 8
    top_k: int = 2
    capacity_factor: float = 2.0
    d_ff: int = 96
    vocab: int = 256
    seq: int = 32
    batch: int = 16
    rope_theta: float = 1e6
    scan: bool = False
    remat: bool = False
    compute_dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.d_model % (2 * self.heads):
            raise ValueError(
                f"d_model={self.d_model} is not an even multiple of heads={self.heads}"
            )
        if self.heads % self.num_kv_heads:
            raise ValueError(
                f"heads={self.heads} is not a multiple of num_kv_heads={self.num_kv_heads}"
            )
        if self.top_k > self.experts:
            raise ValueError(f"top_k={self.top_k} is more than experts={self.experts}")


def init_block(key: jax.Array, config: MixtralConfig) -> PyTree:
    d_model, heads, kv_heads = config.d_model, config.heads, config.num_kv_heads
    head_dim = d_model // heads
    q_key, k_key, v_key, o_key, experts_key = jax.random.split(key, 5)
    return {
        "attn_norm": jnp.ones(d_model),
        "attn": {
            "wq": scaled_normal(q_key, (d_model, heads, head_dim), d_model),
            "wk": scaled_normal(k_key, (d_model, kv_heads, head_dim), d_model),
            "wv": scaled_normal(v_key, (d_model, kv_heads, head_dim), d_model),
            "wo": scaled_normal(o_key, (heads, head_dim, d_model), d_model),
        },
        "moe_norm": jnp.ones(d_model),
        "moe": init_experts(experts_key, config.experts, d_model, config.d_ff),
    }


def init_params(key: jax.Array, config: MixtralConfig) -> PyTree:
    embed_key, head_key, blocks_key = jax.random.split(key, 3)
    return {
        "embed": 0.02 * jax.random.normal(embed_key, (config.vocab, config.d_model)),
        "blocks": init_layers(
            lambda block_key: init_block(block_key, config),
            blocks_key,
            config.layers,
            scan=config.scan,
        ),
        "norm": jnp.ones(config.d_model),
        "head": scaled_normal(head_key, (config.d_model, config.vocab), config.d_model),
    }


def loss_fn(params: PyTree, batch: PyTree, config: MixtralConfig) -> jax.Array:
    dtype = jnp.dtype(config.compute_dtype)
    angles = rotary_angles(config.seq, config.d_model // config.heads, config.rope_theta)

    def block(carry: PyTree, block_params: PyTree) -> PyTree:
        x, balance = carry
        normal = rms_norm(x, block_params["attn_norm"])
        x = x + attention(normal, block_params["attn"], angles)
        mixed, block_balance = apply_experts(
            rms_norm(x, block_params["moe_norm"]),
            block_params["moe"],
            top_k=config.top_k,
            capacity_factor=config.capacity_factor,
        )
        return x + mixed, balance + block_balance

    x = params["embed"][batch["tokens"]].astype(dtype)
    start = (x, jnp.zeros((), jnp.float32))
    x, balance = apply_layers(block, start, params["blocks"], scan=config.scan, remat=config.remat)
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
    "['moe']['gate']": ("model", None, None),
    "['moe']['up']": ("model", None, None),
    "['moe']['down']": ("model", None, None),
}
"""Heads and vocabulary cut, whole experts dealt out."""


def build(name: str, config: MixtralConfig) -> Workload:
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
