"""A DeepSeek-like model: keys and values from one narrow latent, many small experts, some shared.

Source: DeepSeek-AI (2024), DeepSeek-V2; here experts have a capacity, as in `experts`, and the
weights of a token's experts sum to 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

from experiments.workloads.attention import causal_softmax
from experiments.workloads.experts import apply_experts, init_experts
from experiments.workloads.initializers import scaled_normal
from experiments.workloads.layer_stack import apply_layers, init_layers
from experiments.workloads.llama import rotary_angles, rotate, swiglu
from experiments.workloads.megatron import rule_by_path_end
from experiments.workloads.normalization import rms_norm
from experiments.workloads.tokens import token_batch
from experiments.workloads.training import training_workload
from experiments.workloads.workload import PyTree, Workload

BALANCE_WEIGHT = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepseekConfig:
    """Sizes and form of the model.

    Attributes:
        layers: Number of blocks; the first has a dense MLP, the others experts.
        d_model: Width of the residual stream.
        heads: Attention heads.
        q_rank: Width of the latent that queries come from; 0 for none.
        kv_rank: Width of the latent that keys and values come from.
        nope_dim: Width of a head's key without a position.
        rope_dim: Width of the key with a position, shared by all heads; even.
        v_dim: Width of a head's value.
        d_ff: Width inside the dense MLP.
        experts: Experts in a mixture.
        shared_experts: Experts beside them that every token goes through.
        top_k: Experts a token is sent to.
        capacity_factor: Places at the experts per place that evenly routed tokens need.
        expert_ff: Width inside one expert.
        vocab: Number of token ids.
        seq: Tokens in one sequence.
        batch: Sequences in one step.
        rope_theta: Base of the rotary wavelengths.
        scan: Stack the blocks with experts and scan over them, else unroll.
        remat: Compute each block again in the backward pass.
        compute_dtype: Type of activations and matmuls; parameters, router and Adam stay float32.
    """

    layers: int = 2
    d_model: int = 64
    heads: int = 8
    q_rank: int = 48
    kv_rank: int = 32
    nope_dim: int = 8
    rope_dim: int = 4
    v_dim: int = 8
    d_ff: int = 192
    experts: int = 16
    shared_experts: int = 2
    top_k: int = 4
    capacity_factor: float = 2.0
    expert_ff: int = 32
    vocab: int = 256
    seq: int = 32
    batch: int = 16
    rope_theta: float = 10_000.0
    scan: bool = False
    remat: bool = False
    compute_dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.layers < 2:
            raise ValueError(f"layers={self.layers} leaves no block with experts")
        if self.top_k > self.experts:
            raise ValueError(f"top_k={self.top_k} is more than experts={self.experts}")


def init_attention(key: jax.Array, config: DeepseekConfig) -> PyTree:
    d_model, heads, q_rank, kv_rank = config.d_model, config.heads, config.q_rank, config.kv_rank
    q_key, q_up_key, kv_key, k_key, v_key, o_key = jax.random.split(key, 6)
    q_dim = config.nope_dim + config.rope_dim
    params = {
        "wkv_down": scaled_normal(kv_key, (d_model, kv_rank + config.rope_dim), d_model),
        "kv_norm": jnp.ones(kv_rank),
        "wk_up": scaled_normal(k_key, (kv_rank, heads, config.nope_dim), kv_rank),
        "wv_up": scaled_normal(v_key, (kv_rank, heads, config.v_dim), kv_rank),
        "wo": scaled_normal(o_key, (heads, config.v_dim, d_model), heads * config.v_dim),
    }
    if not q_rank:
        return {**params, "wq_up": scaled_normal(q_up_key, (d_model, heads, q_dim), d_model)}
    return {
        **params,
        "wq_down": scaled_normal(q_key, (d_model, q_rank), d_model),
        "q_norm": jnp.ones(q_rank),
        "wq_up": scaled_normal(q_up_key, (q_rank, heads, q_dim), q_rank),
    }


def init_swiglu(key: jax.Array, d_model: int, d_ff: int) -> PyTree:
    gate_key, up_key, down_key = jax.random.split(key, 3)
    return {
        "gate": scaled_normal(gate_key, (d_model, d_ff), d_model),
        "up": scaled_normal(up_key, (d_model, d_ff), d_model),
        "down": scaled_normal(down_key, (d_ff, d_model), d_ff),
    }


def init_block(key: jax.Array, config: DeepseekConfig, *, dense: bool) -> PyTree:
    attention_key, mlp_key, shared_key = jax.random.split(key, 3)
    d_model = config.d_model
    params = {
        "attn_norm": jnp.ones(d_model),
        "attn": init_attention(attention_key, config),
        "mlp_norm": jnp.ones(d_model),
    }
    if dense:
        return {**params, "mlp": init_swiglu(mlp_key, d_model, config.d_ff)}
    # Side by side, the shared experts are one wider MLP.
    width = config.shared_experts * config.expert_ff
    return {
        **params,
        "moe": init_experts(mlp_key, config.experts, d_model, config.expert_ff),
        "shared": init_swiglu(shared_key, d_model, width),
    }


def init_params(key: jax.Array, config: DeepseekConfig) -> PyTree:
    embed_key, head_key, first_key, blocks_key = jax.random.split(key, 4)
    return {
        "embed": 0.02 * jax.random.normal(embed_key, (config.vocab, config.d_model)),
        "first": init_block(first_key, config, dense=True),
        "blocks": init_layers(
            lambda block_key: init_block(block_key, config, dense=False),
            blocks_key,
            config.layers - 1,
            scan=config.scan,
        ),
        "norm": jnp.ones(config.d_model),
        "head": scaled_normal(head_key, (config.d_model, config.vocab), config.d_model),
    }


def latent_attention(
    x: jax.Array,
    params: PyTree,
    angles: tuple[jax.Array, jax.Array],
    config: DeepseekConfig,
) -> jax.Array:
    """Attend with keys and values that all heads expand from one latent.

    Args:
        x: Activations [batch, seq, d_model].
        params: What `init_attention` returned.
        angles: Of every position, for `rope_dim`.
        config: Sizes.

    Returns:
        Activations of the shape and type of `x`.
    """
    weights = {name: weight.astype(x.dtype) for name, weight in params.items() if name[0] == "w"}
    queries = rms_norm(x @ weights["wq_down"], params["q_norm"]) if config.q_rank else x
    q = jnp.einsum("bsr,rhe->bshe", queries, weights["wq_up"])
    q_nope, q_rope = jnp.split(q, [config.nope_dim], axis=-1)
    latent, k_rope = jnp.split(x @ weights["wkv_down"], [config.kv_rank], axis=-1)
    latent = rms_norm(latent, params["kv_norm"])
    k_nope = jnp.einsum("bsr,rhe->bshe", latent, weights["wk_up"])
    v = jnp.einsum("bsr,rhe->bshe", latent, weights["wv_up"])
    q_rope, k_rope = rotate(q_rope, *angles), rotate(k_rope[:, :, None], *angles)[:, :, 0]

    scores = jnp.einsum("bqhd,bkhd->bhqk", q_nope, k_nope)
    scores = (scores + jnp.einsum("bqhd,bkd->bhqk", q_rope, k_rope)).astype(jnp.float32)
    scores = scores / math.sqrt(config.nope_dim + config.rope_dim)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", causal_softmax(scores).astype(v.dtype), v)
    return jnp.einsum("bshe,hed->bsd", mixed, weights["wo"])


def loss_fn(params: PyTree, batch: PyTree, config: DeepseekConfig) -> jax.Array:
    dtype = jnp.dtype(config.compute_dtype)
    angles = rotary_angles(config.seq, config.rope_dim, config.rope_theta)

    def attend(x: jax.Array, block: PyTree) -> tuple[jax.Array, jax.Array]:
        normal = rms_norm(x, block["attn_norm"])
        x = x + latent_attention(normal, block["attn"], angles, config)
        return x, rms_norm(x, block["mlp_norm"])

    def dense_block(x: jax.Array, block: PyTree) -> jax.Array:
        x, normal = attend(x, block)
        return x + swiglu(normal, block["mlp"])

    def expert_block(carry: PyTree, block: PyTree) -> PyTree:
        x, balance = carry
        x, normal = attend(x, block)
        mixed, block_balance = apply_experts(
            normal, block["moe"], top_k=config.top_k, capacity_factor=config.capacity_factor
        )
        return x + swiglu(normal, block["shared"]) + mixed, balance + block_balance

    x = params["embed"][batch["tokens"]].astype(dtype)
    x = apply_layers(dense_block, x, [params["first"]], scan=False, remat=config.remat)
    start = (x, jnp.zeros((), jnp.float32))
    x, balance = apply_layers(
        expert_block, start, params["blocks"], scan=config.scan, remat=config.remat
    )
    logits = (rms_norm(x, params["norm"]) @ params["head"].astype(dtype)).astype(jnp.float32)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"])
    return jnp.mean(losses) + BALANCE_WEIGHT * balance / (config.layers - 1)


MEGATRON = {
    "params['embed']": ("model", None),
    "params['head']": (None, "model"),
    "['wq_up']": (None, "model", None),
    "['wk_up']": (None, "model", None),
    "['wv_up']": (None, "model", None),
    "['wo']": ("model", None, None),
    "['mlp']['gate']": (None, "model"),
    "['mlp']['up']": (None, "model"),
    "['mlp']['down']": ("model", None),
    "['shared']['gate']": (None, "model"),
    "['shared']['up']": (None, "model"),
    "['shared']['down']": ("model", None),
    "['moe']['gate']": ("model", None, None),
    "['moe']['up']": ("model", None, None),
    "['moe']['down']": ("model", None, None),
}
"""Heads, MLP widths and vocabulary cut, whole experts dealt out; the latents stay whole."""


def build(name: str, config: DeepseekConfig) -> Workload:
    """Build the model's training workload."""
    return training_workload(
        name=name,
        init_params=lambda key: init_params(key, config),
        loss_fn=lambda params, batch: loss_fn(params, batch, config),
        make_batch=lambda key: token_batch(
            key, batch=config.batch, seq=config.seq, vocab=config.vocab
        ),
        megatron=rule_by_path_end(MEGATRON),
    )
