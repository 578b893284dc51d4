"""An encoder and a decoder with relative positions, trained with Adafactor.

Source: Raffel et al. (2019), version 1.1; Shazeer and Stern (2018).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

from experiments.workloads.attention import MASKED
from experiments.workloads.initializers import scaled_normal
from experiments.workloads.megatron import rule_by_path_end
from experiments.workloads.normalization import rms_norm
from experiments.workloads.pinning import pinned
from experiments.workloads.tokens import token_batch
from experiments.workloads.training import training_workload
from experiments.workloads.workload import PyTree, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class T5Config:
    """Sizes of the model.

    Attributes:
        layers: Blocks of the encoder, and of the decoder.
        d_model: Width of the residual streams.
        heads: Attention heads.
        head_dim: Width of a head.
        d_ff: Width inside an MLP.
        vocab: Number of token ids.
        buckets: Relative distances that have a bias of their own.
        source: Tokens that the encoder reads.
        target: Tokens that the decoder writes.
        batch: Pairs of texts in one step.
        compute_dtype: Type of activations and matmuls.
    """

    layers: int = 1
    d_model: int = 64
    heads: int = 8
    head_dim: int = 16
    d_ff: int = 128
    vocab: int = 256
    buckets: int = 16
    source: int = 32
    target: int = 16
    batch: int = 16
    compute_dtype: str = "float32"


def init_attention(key: jax.Array, config: T5Config) -> PyTree:
    d_model, heads, head_dim = config.d_model, config.heads, config.head_dim
    q_key, k_key, v_key, o_key = jax.random.split(key, 4)
    return {
        "norm": jnp.ones(d_model),
        "q": scaled_normal(q_key, (d_model, heads, head_dim), d_model * head_dim),
        "k": scaled_normal(k_key, (d_model, heads, head_dim), d_model),
        "v": scaled_normal(v_key, (d_model, heads, head_dim), d_model),
        "o": scaled_normal(o_key, (heads, head_dim, d_model), heads * head_dim),
    }


def init_mlp(key: jax.Array, config: T5Config) -> PyTree:
    gate_key, up_key, down_key = jax.random.split(key, 3)
    return {
        "norm": jnp.ones(config.d_model),
        "gate": scaled_normal(gate_key, (config.d_model, config.d_ff), config.d_model),
        "up": scaled_normal(up_key, (config.d_model, config.d_ff), config.d_model),
        "down": scaled_normal(down_key, (config.d_ff, config.d_model), config.d_ff),
    }


def init_params(key: jax.Array, config: T5Config) -> PyTree:
    embed_key, head_key, bias_key, *keys = jax.random.split(key, 3 + 5 * config.layers)
    layers = [keys[5 * index : 5 * index + 5] for index in range(config.layers)]
    biases = jax.random.normal(bias_key, (2, config.buckets, config.heads))
    return {
        "embed": 0.1 * jax.random.normal(embed_key, (config.vocab, config.d_model)),
        "encoder": [
            {"self": init_attention(k[0], config), "mlp": init_mlp(k[1], config)} for k in layers
        ],
        "decoder": [
            {
                "self": init_attention(k[2], config),
                "cross": init_attention(k[3], config),
                "mlp": init_mlp(k[4], config),
            }
            for k in layers
        ],
        "bias": {"encoder": biases[0], "decoder": biases[1]},
        "norm": {"encoder": jnp.ones(config.d_model), "decoder": jnp.ones(config.d_model)},
        "head": scaled_normal(head_key, (config.d_model, config.vocab), config.d_model),
    }


def distance_buckets(length: int, buckets: int) -> jax.Array:
    """Number relative distances: small ones each alone, large ones by their logarithm.

    Args:
        length: Positions.
        buckets: An even number.

    Returns:
        int32[length, length], queries before keys; each below `buckets`.
    """
    distance = jnp.arange(length)[None, :] - jnp.arange(length)[:, None]
    half, exact = buckets // 2, buckets // 4
    size = jnp.abs(distance)
    scale = (half - exact) / math.log(max(length, exact + 1) / exact)
    large = exact + (jnp.log(jnp.maximum(size, 1) / exact) * scale).astype(jnp.int32)
    bucket = jnp.where(size < exact, size, jnp.minimum(large, half - 1))
    return bucket + half * (distance > 0)


def position_bias(table: jax.Array, length: int) -> jax.Array:
    """Biases float32[heads, length, length] of scores."""
    return jnp.moveaxis(table[distance_buckets(length, table.shape[0])], -1, 0)


def attention(
    x: jax.Array, source: jax.Array | None, params: PyTree, bias: jax.Array | None
) -> jax.Array:
    """Attend from `x` to itself, or to what the encoder made, and add what is found.

    Args:
        x: Activations [batch, positions, d_model].
        source: What the encoder made, or None for `x` itself.
        params: What `init_attention` returned.
        bias: float32[heads, positions, positions], added to the scores.

    Returns:
        Of the shape and type of `x`.
    """
    normal = rms_norm(x, params["norm"])
    read = normal if source is None else source
    q = jnp.einsum("bsd,dhe->bshe", normal, params["q"].astype(x.dtype))
    k = jnp.einsum("bsd,dhe->bshe", read, params["k"].astype(x.dtype))
    v = jnp.einsum("bsd,dhe->bshe", read, params["v"].astype(x.dtype))
    scores = jnp.einsum("bqhe,bkhe->bhqk", q, k).astype(jnp.float32)
    weights = jax.nn.softmax(scores if bias is None else scores + bias, axis=-1).astype(x.dtype)
    mixed = jnp.einsum("bhqk,bkhe->bqhe", weights, v)
    return pinned(x + jnp.einsum("bqhe,hed->bqd", mixed, params["o"].astype(x.dtype)))


def mlp(x: jax.Array, params: PyTree) -> jax.Array:
    normal = rms_norm(x, params["norm"])
    gate = jax.nn.gelu(normal @ params["gate"].astype(x.dtype))
    hidden = gate * (normal @ params["up"].astype(x.dtype))
    return pinned(x + hidden @ params["down"].astype(x.dtype))


def loss_fn(params: PyTree, batch: PyTree, config: T5Config) -> jax.Array:
    dtype = jnp.dtype(config.compute_dtype)
    source = pinned(params["embed"][batch["source"]].astype(dtype))
    bias = position_bias(params["bias"]["encoder"], config.source)
    for layer in params["encoder"]:
        source = mlp(attention(source, None, layer["self"], bias), layer["mlp"])
    source = rms_norm(source, params["norm"]["encoder"])

    x = pinned(params["embed"][batch["tokens"]].astype(dtype))
    bias = position_bias(params["bias"]["decoder"], config.target)
    causal = jnp.tril(jnp.ones((config.target, config.target), dtype=bool))
    bias = jnp.where(causal, bias, MASKED)
    for layer in params["decoder"]:
        x = attention(x, None, layer["self"], bias)
        x = mlp(attention(x, source, layer["cross"], None), layer["mlp"])
    x = rms_norm(x, params["norm"]["decoder"])
    logits = (x @ params["head"].astype(dtype)).astype(jnp.float32)
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"]))


def make_batch(key: jax.Array, config: T5Config) -> PyTree:
    source_key, target_key = jax.random.split(key)
    read = token_batch(source_key, batch=config.batch, seq=config.source, vocab=config.vocab)
    written = token_batch(target_key, batch=config.batch, seq=config.target, vocab=config.vocab)
    return {"source": read["tokens"], **written}


MEGATRON = {
    "params['embed']": ("model", None),
    "params['head']": (None, "model"),
    "['q']": (None, "model", None),
    "['k']": (None, "model", None),
    "['v']": (None, "model", None),
    "['o']": ("model", None, None),
    "['gate']": (None, "model"),
    "['up']": (None, "model"),
    "['down']": ("model", None),
    "['bias']['encoder']": (None, "model"),
    "['bias']['decoder']": (None, "model"),
}
"""Heads, MLP width and vocabulary cut."""


def build(name: str, config: T5Config) -> Workload:
    """Build the training workload of an encoder and a decoder."""
    return training_workload(
        name=name,
        init_params=lambda key: init_params(key, config),
        loss_fn=lambda params, batch: loss_fn(params, batch, config),
        make_batch=lambda key: make_batch(key, config),
        megatron=rule_by_path_end(MEGATRON),
        optimizer=optax.adafactor(1e-3, min_dim_size_to_factor=32),
    )
