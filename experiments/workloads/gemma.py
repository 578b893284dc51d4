"""A Gemma 2: windowed and full attention in turn, capped scores, GeGLU, norms on both sides.

Source: Gemma Team (2024), Gemma 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

from experiments.workloads.attention import MASKED
from experiments.workloads.initializers import scaled_normal
from experiments.workloads.layer_stack import apply_layers, init_layers
from experiments.workloads.llama import rotary_angles, rotate
from experiments.workloads.megatron import rule_by_path_end
from experiments.workloads.normalization import rms_norm
from experiments.workloads.tokens import token_batch
from experiments.workloads.training import training_workload
from experiments.workloads.workload import PyTree, Workload

SCORE_CAP = 50.0
LOGIT_CAP = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmaConfig:
    """Sizes and form of the model.

    Attributes:
        layers: Number of blocks, an even number: windowed and full attention in turn.
        d_model: Width of the residual stream.
        heads: Query heads.
        num_kv_heads: Key and value heads; divides `heads`.
        head_dim: Width of a head, even.
        d_ff: Width inside the gated MLP.
        vocab: Number of token ids; the head is the embedding's transpose.
        seq: Tokens in one sequence.
        window: Tokens that windowed attention looks back on, the query's own among them.
        batch: Sequences in one step.
        rope_theta: Base of the rotary wavelengths.
        scan: Stack pairs of blocks and scan over them, else unroll.
        remat: Compute each pair of blocks again in the backward pass.
        compute_dtype: Type of activations and matmuls; parameters and Adam stay float32.
    """

    layers: int = 2
    d_model: int = 64
    heads: int = 8
    num_kv_heads: int = 4
    head_dim: int = 16
    d_ff: int = 192
    vocab: int = 256
    seq: int = 32
    window: int = 8
    batch: int = 16
    rope_theta: float = 10_000.0
    scan: bool = False
    remat: bool = False
    compute_dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.layers % 2:
            raise ValueError(f"layers={self.layers} is not an even number")
        if self.heads % self.num_kv_heads:
            raise ValueError(
                f"heads={self.heads} is not a multiple of num_kv_heads={self.num_kv_heads}"
            )


def init_block(key: jax.Array, config: GemmaConfig) -> PyTree:
    d_model, d_ff, heads, head_dim = config.d_model, config.d_ff, config.heads, config.head_dim
    kv_heads = config.num_kv_heads
    q_key, k_key, v_key, o_key, gate_key, up_key, down_key = jax.random.split(key, 7)
    return {
        # Norms scale by one more than their parameter.
        "attn_norm": jnp.zeros(d_model),
        "attn": {
            "wq": scaled_normal(q_key, (d_model, heads, head_dim), d_model),
            "wk": scaled_normal(k_key, (d_model, kv_heads, head_dim), d_model),
            "wv": scaled_normal(v_key, (d_model, kv_heads, head_dim), d_model),
            "wo": scaled_normal(o_key, (heads, head_dim, d_model), heads * head_dim),
        },
        "attn_post_norm": jnp.zeros(d_model),
        "mlp_norm": jnp.zeros(d_model),
        "mlp": {
            "gate": scaled_normal(gate_key, (d_model, d_ff), d_model),
            "up": scaled_normal(up_key, (d_model, d_ff), d_model),
            "down": scaled_normal(down_key, (d_ff, d_model), d_ff),
        },
        "mlp_post_norm": jnp.zeros(d_model),
    }


def init_pair(key: jax.Array, config: GemmaConfig) -> PyTree:
    windowed_key, full_key = jax.random.split(key)
    return {"windowed": init_block(windowed_key, config), "full": init_block(full_key, config)}


def init_params(key: jax.Array, config: GemmaConfig) -> PyTree:
    embed_key, blocks_key = jax.random.split(key)
    shape = (config.vocab, config.d_model)
    return {
        "embed": scaled_normal(embed_key, shape, config.d_model),
        "pairs": init_layers(
            lambda pair_key: init_pair(pair_key, config),
            blocks_key,
            config.layers // 2,
            scan=config.scan,
        ),
        "norm": jnp.zeros(config.d_model),
    }


def cap(x: jax.Array, most: float) -> jax.Array:
    """Bend values so that none is beyond `most`, and small ones stay as they are."""
    return most * jnp.tanh(x / most)


def windowed_attention(q: jax.Array, k: jax.Array, v: jax.Array, window: int) -> jax.Array:
    """Attend to the last `window` positions, with capped scores.

    Args:
        q: Queries [batch, seq, heads, head_dim].
        k: Keys [batch, seq, num_kv_heads, head_dim]; `num_kv_heads` divides `heads`.
        v: Values, likewise.
        window: Positions a query sees, its own among them; at least `seq` for all before it.

    Returns:
        Mixed values [batch, seq, heads, head_dim] of the type of `v`.
    """
    batch, seq, heads, head_dim = q.shape
    num_kv_heads = k.shape[2]
    grouped = q.reshape(batch, seq, num_kv_heads, heads // num_kv_heads, head_dim)
    scores = jnp.einsum("bqgrd,bkgd->bgrqk", grouped, k).astype(jnp.float32)
    scores = cap(scores / math.sqrt(head_dim), SCORE_CAP)
    back = jnp.arange(seq)[:, None] - jnp.arange(seq)
    seen = (back >= 0) & (back < window)
    weights = jax.nn.softmax(jnp.where(seen, scores, MASKED), axis=-1).astype(v.dtype)
    mixed = jnp.einsum("bgrqk,bkgd->bqgrd", weights, v)
    return mixed.reshape(batch, seq, heads, head_dim)


def attention(
    x: jax.Array, params: PyTree, angles: tuple[jax.Array, jax.Array], window: int
) -> jax.Array:
    q = rotate(jnp.einsum("bsd,dhe->bshe", x, params["wq"].astype(x.dtype)), *angles)
    k = rotate(jnp.einsum("bsd,dhe->bshe", x, params["wk"].astype(x.dtype)), *angles)
    v = jnp.einsum("bsd,dhe->bshe", x, params["wv"].astype(x.dtype))
    mixed = windowed_attention(q, k, v, window)
    return jnp.einsum("bshe,hed->bsd", mixed, params["wo"].astype(x.dtype))


def geglu(x: jax.Array, params: PyTree) -> jax.Array:
    gate = jax.nn.gelu(x @ params["gate"].astype(x.dtype))
    up = x @ params["up"].astype(x.dtype)
    return (gate * up) @ params["down"].astype(x.dtype)


def block(
    x: jax.Array, params: PyTree, angles: tuple[jax.Array, jax.Array], window: int
) -> jax.Array:
    normal = rms_norm(x, 1.0 + params["attn_norm"])
    attended = attention(normal, params["attn"], angles, window)
    x = x + rms_norm(attended, 1.0 + params["attn_post_norm"])
    gated = geglu(rms_norm(x, 1.0 + params["mlp_norm"]), params["mlp"])
    return x + rms_norm(gated, 1.0 + params["mlp_post_norm"])


def loss_fn(params: PyTree, batch: PyTree, config: GemmaConfig) -> jax.Array:
    dtype = jnp.dtype(config.compute_dtype)
    angles = rotary_angles(config.seq, config.head_dim, config.rope_theta)

    def pair(x: jax.Array, blocks: PyTree) -> jax.Array:
        x = block(x, blocks["windowed"], angles, config.window)
        return block(x, blocks["full"], angles, config.seq)

    x = math.sqrt(config.d_model) * params["embed"][batch["tokens"]]
    x = apply_layers(pair, x.astype(dtype), params["pairs"], scan=config.scan, remat=config.remat)
    x = rms_norm(x, 1.0 + params["norm"])
    logits = cap((x @ params["embed"].T.astype(dtype)).astype(jnp.float32), LOGIT_CAP)
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"]))


MEGATRON = {
    "params['embed']": ("model", None),
    "['attn']['wq']": (None, "model", None),
    "['attn']['wk']": (None, "model", None),
    "['attn']['wv']": (None, "model", None),
    "['attn']['wo']": ("model", None, None),
    "['mlp']['gate']": (None, "model"),
    "['mlp']['up']": (None, "model"),
    "['mlp']['down']": ("model", None),
}
"""Heads, MLP width and vocabulary cut; too few key and value heads stay whole."""


def build(name: str, config: GemmaConfig) -> Workload:
    """Build the Gemma's training workload."""
    return training_workload(
        name=name,
        init_params=lambda key: init_params(key, config),
        loss_fn=lambda params, batch: loss_fn(params, batch, config),
        make_batch=lambda key: token_batch(
            key, batch=config.batch, seq=config.seq, vocab=config.vocab
        ),
        megatron=rule_by_path_end(MEGATRON),
    )
