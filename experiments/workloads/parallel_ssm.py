"""A state space model whose recurrence is an associative scan along the sequence.

Channels lie in heads that fade alike, states are small matrices; trained with Lion.

Sources: Dao and Gu (2024), Mamba-2, with the scan in place of its blocks; Chen et al. (2023).
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

from experiments.workloads.initializers import scaled_normal
from experiments.workloads.megatron import rule_by_path_end
from experiments.workloads.normalization import rms_norm
from experiments.workloads.pinning import pinned
from experiments.workloads.ssm import causal_conv
from experiments.workloads.tokens import token_batch
from experiments.workloads.training import training_workload
from experiments.workloads.workload import PyTree, Workload

CONV_WIDTH = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelSsmConfig:
    """Sizes of the model.

    Attributes:
        layers: Number of blocks.
        d_model: Width of the residual stream.
        heads: Heads of a block's recurrence.
        head_dim: Channels of a head.
        states: Numbers that each channel remembers.
        vocab: Number of token ids.
        seq: Tokens in one sequence.
        batch: Sequences in one step.
        compute_dtype: Type of matmuls; the recurrence stays float32.
    """

    layers: int = 2
    d_model: int = 64
    heads: int = 8
    head_dim: int = 16
    states: int = 8
    vocab: int = 256
    seq: int = 16
    batch: int = 16
    compute_dtype: str = "float32"


def init_block(key: jax.Array, config: ParallelSsmConfig) -> PyTree:
    d_model, heads, inner = config.d_model, config.heads, config.heads * config.head_dim
    keys = jax.random.split(key, 7)
    return {
        "norm": jnp.ones(d_model),
        "wx": scaled_normal(keys[0], (d_model, inner), d_model),
        "wgate": scaled_normal(keys[1], (d_model, inner), d_model),
        "conv": scaled_normal(keys[2], (CONV_WIDTH, inner), CONV_WIDTH),
        "wb": scaled_normal(keys[3], (d_model, config.states), d_model),
        "wc": scaled_normal(keys[4], (d_model, config.states), d_model),
        "wdt": scaled_normal(keys[5], (d_model, heads), d_model),
        "log_a": jnp.log(jnp.arange(1.0, heads + 1.0)),
        "out_norm": jnp.ones(inner),
        "wo": scaled_normal(keys[6], (inner, d_model), inner),
    }


def init_params(key: jax.Array, config: ParallelSsmConfig) -> PyTree:
    embed_key, blocks_key = jax.random.split(key)
    return {
        "embed": 0.02 * jax.random.normal(embed_key, (config.vocab, config.d_model)),
        "blocks": [init_block(k, config) for k in jax.random.split(blocks_key, config.layers)],
        "norm": jnp.ones(config.d_model),
    }


def fading_sums(fade: jax.Array, taken: jax.Array) -> jax.Array:
    """Solve `h[t] = fade[t] * h[t - 1] + taken[t]` along the second dimension.

    Args:
        fade: float32[batch, seq, ...], broadcasts to `taken`.
        taken: float32[batch, seq, ...].

    Returns:
        `h`, of the shape of `taken`.
    """

    def joined(
        first: tuple[jax.Array, jax.Array], second: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        return first[0] * second[0], second[0] * first[1] + second[1]

    return jax.lax.associative_scan(joined, (fade, taken), axis=1)[1]


def block(x: jax.Array, params: PyTree, config: ParallelSsmConfig) -> jax.Array:
    batch, seq, _ = x.shape
    normal = rms_norm(x, params["norm"])
    wide = normal.astype(jnp.float32)
    inner = jax.nn.silu(causal_conv(normal @ params["wx"].astype(x.dtype), params["conv"]))
    heads = inner.astype(jnp.float32).reshape(batch, seq, config.heads, config.head_dim)
    dt = jax.nn.softplus(wide @ params["wdt"] - 2.0)
    b, c = wide @ params["wb"], wide @ params["wc"]
    fade = jnp.exp(-dt * jnp.exp(params["log_a"]))
    taken = jnp.einsum("bsh,bshe,bsn->bshen", dt, heads, b)
    states = pinned(fading_sums(fade[..., None, None], taken))
    read = jnp.einsum("bshen,bsn->bshe", states, c).reshape(batch, seq, -1)
    gate = jax.nn.silu(normal @ params["wgate"].astype(x.dtype))
    gated = rms_norm(read.astype(x.dtype) * gate, params["out_norm"])
    return pinned(x + gated @ params["wo"].astype(x.dtype))


def loss_fn(params: PyTree, batch: PyTree, config: ParallelSsmConfig) -> jax.Array:
    dtype = jnp.dtype(config.compute_dtype)
    x = pinned(params["embed"][batch["tokens"]].astype(dtype))
    for block_params in params["blocks"]:
        x = block(x, block_params, config)
    x = rms_norm(x, params["norm"])
    logits = (x @ params["embed"].T.astype(dtype)).astype(jnp.float32)
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"]))


MEGATRON = {
    "params['embed']": ("model", None),
    "['wx']": (None, "model"),
    "['wgate']": (None, "model"),
    "['conv']": (None, "model"),
    "['wdt']": (None, "model"),
    "['log_a']": ("model",),
    "['out_norm']": ("model",),
    "['wo']": ("model", None),
}
"""Heads cut; vocabulary cut."""


def build(name: str, config: ParallelSsmConfig) -> Workload:
    """Build the state space model's training workload."""
    return training_workload(
        name=name,
        init_params=lambda key: init_params(key, config),
        loss_fn=lambda params, batch: loss_fn(params, batch, config),
        make_batch=lambda key: token_batch(
            key, batch=config.batch, seq=config.seq, vocab=config.vocab
        ),
        megatron=rule_by_path_end(MEGATRON),
        optimizer=optax.lion(1e-4),
    )
