"""A Llama: rotary positions, grouped-query attention, SwiGLU, RMSNorm, no biases.

Sources: Touvron et al. (2023); Su et al. (2021) for rotary positions; Shazeer (2020) for SwiGLU.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from experiments.workloads.attention import grouped_causal_attention
from experiments.workloads.initializers import scaled_normal
from experiments.workloads.layer_stack import apply_layers, init_layers
from experiments.workloads.megatron import rule_by_path_end
from experiments.workloads.normalization import rms_norm
from experiments.workloads.pinning import pinned
from experiments.workloads.tokens import token_batch
from experiments.workloads.training import training_workload
from experiments.workloads.workload import PyTree, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig:
    """Sizes and form of the model.

    Attributes:
        layers: Number of blocks.
        d_model: Width of the residual stream.
        heads: Query heads; divides `d_model`, and `d_model / heads` is even.
        num_kv_heads: Key and value heads; divides `heads`.
        d_ff: Width inside the gated MLP.
        vocab: Number of token ids.
        seq: Tokens in one sequence.
        batch: Sequences in one step.
        rope_theta: Base of the rotary wavelengths.
        scan: Stack the blocks and scan over them, else unroll.
        remat: Compute each block again in the backward pass.
        compute_dtype: Type of activations and matmuls; parameters and Adam stay float32.
    """

    layers: int = 2
    d_model: int = 64
    heads: int = 8
    num_kv_heads: int = 4
    d_ff: int = 192
    vocab: int = 256
    seq: int = 32
    batch: int = 16
    rope_theta: float = 10_000.0
    scan: bool = False
    remat: bool | str = False
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


def init_block(key: jax.Array, config: LlamaConfig) -> PyTree:
    d_model, d_ff, heads, kv_heads = config.d_model, config.d_ff, config.heads, config.num_kv_heads
    head_dim = d_model // heads
    q_key, k_key, v_key, o_key, gate_key, up_key, down_key = jax.random.split(key, 7)
    return {
        "attn_norm": jnp.ones(d_model),
        "attn": {
            "wq": scaled_normal(q_key, (d_model, heads, head_dim), d_model),
            "wk": scaled_normal(k_key, (d_model, kv_heads, head_dim), d_model),
            "wv": scaled_normal(v_key, (d_model, kv_heads, head_dim), d_model),
            "wo": scaled_normal(o_key, (heads, head_dim, d_model), d_model),
        },
        "mlp_norm": jnp.ones(d_model),
        "mlp": {
            "gate": scaled_normal(gate_key, (d_model, d_ff), d_model),
            "up": scaled_normal(up_key, (d_model, d_ff), d_model),
            "down": scaled_normal(down_key, (d_ff, d_model), d_ff),
        },
    }


def init_params(key: jax.Array, config: LlamaConfig) -> PyTree:
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


def rotary_angles(seq: int, head_dim: int, theta: float) -> tuple[jax.Array, jax.Array]:
    """Give the cosine and sine of every position at every wavelength.

    Args:
        seq: Number of positions.
        head_dim: Width of a head, even.
        theta: Base of the wavelengths.

    Returns:
        Two float32[seq, 1, head_dim / 2], to broadcast over heads.
    """
    frequencies = theta ** (-jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim)
    angles = jnp.arange(seq, dtype=jnp.float32)[:, None, None] * frequencies
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Turn the pairs (i, i + head_dim / 2) of each head by their position's angles.

    Args:
        x: Queries or keys [batch, seq, heads, head_dim].
        cos: float32[seq, 1, head_dim / 2].
        sin: Likewise.

    Returns:
        Turned queries or keys of the shape and type of `x`.
    """
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x.dtype)


def attention(x: jax.Array, params: PyTree, angles: tuple[jax.Array, jax.Array]) -> jax.Array:
    q = rotate(jnp.einsum("bsd,dhe->bshe", x, params["wq"].astype(x.dtype)), *angles)
    k = rotate(jnp.einsum("bsd,dhe->bshe", x, params["wk"].astype(x.dtype)), *angles)
    v = jnp.einsum("bsd,dhe->bshe", x, params["wv"].astype(x.dtype))
    mixed = grouped_causal_attention(q, k, v)
    return jnp.einsum("bshe,hed->bsd", mixed, params["wo"].astype(x.dtype))


def swiglu(x: jax.Array, params: PyTree) -> jax.Array:
    gate = jax.nn.silu(x @ params["gate"].astype(x.dtype))
    up = x @ params["up"].astype(x.dtype)
    return (gate * up) @ params["down"].astype(x.dtype)


def block(x: jax.Array, params: PyTree, angles: tuple[jax.Array, jax.Array]) -> jax.Array:
    x = pinned(x + attention(rms_norm(x, params["attn_norm"]), params["attn"], angles))
    return pinned(x + swiglu(rms_norm(x, params["mlp_norm"]), params["mlp"]))


def loss_fn(params: PyTree, batch: PyTree, config: LlamaConfig) -> jax.Array:
    dtype = jnp.dtype(config.compute_dtype)
    angles = rotary_angles(config.seq, config.d_model // config.heads, config.rope_theta)
    x = apply_layers(
        lambda x, block_params: block(x, block_params, angles),
        pinned(params["embed"][batch["tokens"]].astype(dtype)),
        params["blocks"],
        scan=config.scan,
        remat=config.remat,
    )
    x = rms_norm(x, params["norm"])
    logits = (x @ params["head"].astype(dtype)).astype(jnp.float32)
    # A one-hot product instead of a gather, so that a cut vocabulary stays cut.
    targets = jax.nn.one_hot(batch["targets"], config.vocab, dtype=jnp.float32)
    return -jnp.mean(jnp.sum(targets * jax.nn.log_softmax(logits, axis=-1), axis=-1))


MEGATRON = {
    "params['embed']": ("model", None),
    "params['head']": (None, "model"),
    "['attn']['wq']": (None, "model", None),
    "['attn']['wk']": (None, "model", None),
    "['attn']['wv']": (None, "model", None),
    "['attn']['wo']": ("model", None, None),
    "['mlp']['gate']": (None, "model"),
    "['mlp']['up']": (None, "model"),
    "['mlp']['down']": ("model", None),
}
"""Heads, MLP width and vocabulary cut; too few key and value heads stay whole."""


def build(name: str, config: LlamaConfig) -> Workload:
    """Build the Llama's training workload."""
    return training_workload(
        name=name,
        init_params=lambda key: init_params(key, config),
        loss_fn=lambda params, batch: loss_fn(params, batch, config),
        make_batch=lambda key: token_batch(
            key, batch=config.batch, seq=config.seq, vocab=config.vocab
        ),
        megatron=rule_by_path_end(MEGATRON),
    )
