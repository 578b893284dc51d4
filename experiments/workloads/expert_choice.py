"""An encoder with experts that choose their tokens: every expert has the same work.

Tokens are gathered by index for each expert, and what it says is added back by index.

Source: Zhou et al. (2022).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import jax
import jax.numpy as jnp
import optax

from experiments.workloads.experts import init_experts
from experiments.workloads.initializers import scaled_normal
from experiments.workloads.megatron import rule_by_path_end
from experiments.workloads.moe import attention
from experiments.workloads.normalization import rms_norm
from experiments.workloads.pinning import pinned
from experiments.workloads.tokens import token_batch
from experiments.workloads.training import training_workload
from experiments.workloads.workload import PyTree, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceConfig:
    """Sizes of the model.

    Attributes:
        layers: Number of blocks, each one attention and one mixture.
        d_model: Width of the residual stream.
        heads: Attention heads; divides `d_model`.
        experts: Experts in a mixture.
        top_k: Experts that a token is sent to, on average.
        d_ff: Width inside one expert.
        vocab: Number of token ids.
        seq: Tokens in one sequence.
        batch: Sequences in one step.
        compute_dtype: Type of activations and matmuls.
    """

    layers: int = 1
    d_model: int = 64
    heads: int = 8
    experts: int = 8
    top_k: int = 2
    d_ff: int = 128
    vocab: int = 256
    seq: int = 32
    batch: int = 16
    compute_dtype: str = "float32"


Mixture: TypeAlias = Callable[[jax.Array, PyTree, ChoiceConfig], jax.Array]
"""`mixture(x, params, config)`: activations [batch, seq, d_model] through the experts."""


def init_block(key: jax.Array, config: ChoiceConfig) -> PyTree:
    d_model, heads = config.d_model, config.heads
    q_key, k_key, v_key, o_key, experts_key = jax.random.split(key, 5)
    shape = (d_model, heads, d_model // heads)
    return {
        "attn_norm": jnp.ones(d_model),
        "attn": {
            "wq": scaled_normal(q_key, shape, d_model),
            "wk": scaled_normal(k_key, shape, d_model),
            "wv": scaled_normal(v_key, shape, d_model),
            "wo": scaled_normal(o_key, (*shape[1:], d_model), d_model),
        },
        "moe_norm": jnp.ones(d_model),
        "moe": init_experts(experts_key, config.experts, d_model, config.d_ff),
    }


def init_params(key: jax.Array, config: ChoiceConfig) -> PyTree:
    embed_key, blocks_key = jax.random.split(key)
    return {
        "embed": 0.1 * jax.random.normal(embed_key, (config.vocab, config.d_model)),
        "blocks": [init_block(k, config) for k in jax.random.split(blocks_key, config.layers)],
        "norm": jnp.ones(config.d_model),
    }


def mixture(x: jax.Array, params: PyTree, config: ChoiceConfig) -> jax.Array:
    """Let every expert take the tokens of each sequence that want it the most."""
    batch, seq, _ = x.shape
    places = config.top_k * seq // config.experts
    wanted = jax.nn.softmax(x.astype(jnp.float32) @ params["router"], axis=-1)
    weights, tokens = jax.lax.top_k(jnp.swapaxes(wanted, 1, 2), places)
    rows = jnp.arange(batch)[:, None, None]
    inputs = x[rows, tokens]
    gate = jax.nn.silu(jnp.einsum("becd,edf->becf", inputs, params["gate"].astype(x.dtype)))
    up = jnp.einsum("becd,edf->becf", inputs, params["up"].astype(x.dtype))
    outputs = jnp.einsum("becf,efd->becd", gate * up, params["down"].astype(x.dtype))
    outputs = outputs * weights[..., None].astype(x.dtype)
    return jnp.zeros_like(x).at[rows, tokens].add(outputs)


def loss_fn(params: PyTree, batch: PyTree, config: ChoiceConfig, mix: Mixture) -> jax.Array:
    dtype = jnp.dtype(config.compute_dtype)
    x = pinned(params["embed"][batch["tokens"]].astype(dtype))
    for block in params["blocks"]:
        x = pinned(x + attention(rms_norm(x, block["attn_norm"]), block["attn"]))
        x = pinned(x + mix(rms_norm(x, block["moe_norm"]), block["moe"], config))
    logits = (rms_norm(x, params["norm"]) @ params["embed"].T.astype(dtype)).astype(jnp.float32)
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"]))


MEGATRON = {
    "params['embed']": ("model", None),
    "['attn']['wq']": (None, "model", None),
    "['attn']['wk']": (None, "model", None),
    "['attn']['wv']": (None, "model", None),
    "['attn']['wo']": ("model", None, None),
    "['moe']['gate']": ("model", None, None),
    "['moe']['up']": ("model", None, None),
    "['moe']['down']": ("model", None, None),
}
"""Heads and vocabulary cut, whole experts dealt out."""


def build(name: str, config: ChoiceConfig, mix: Mixture = mixture) -> Workload:
    """Build the training workload of a model with experts.

    Args:
        name: The workload's name.
        config: Sizes.
        mix: How tokens find their experts.
    """
    return training_workload(
        name=name,
        init_params=lambda key: init_params(key, config),
        loss_fn=lambda params, batch: loss_fn(params, batch, config, mix),
        make_batch=lambda key: token_batch(
            key, batch=config.batch, seq=config.seq, vocab=config.vocab
        ),
        megatron=rule_by_path_end(MEGATRON),
    )
