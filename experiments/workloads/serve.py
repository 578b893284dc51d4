"""Serving with grouped heads: a chunk of tokens for every sequence, each at a position of its own.

A chunk of one token is decoding, a longer one is prefilling in chunks. Keys and values lie heads
first in the cache, as attention kernels want them.

Source: Ainslie et al. (2023) for grouped heads; Agrawal et al. (2023) for chunks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from experiments.workloads.attention import MASKED
from experiments.workloads.initializers import scaled_normal
from experiments.workloads.layer_stack import init_layers
from experiments.workloads.megatron import rule_by_path_end
from experiments.workloads.normalization import rms_norm
from experiments.workloads.workload import PyTree, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """Sizes of the model and of what it serves.

    Attributes:
        layers: Number of blocks.
        d_model: Width of the residual stream.
        heads: Query heads.
        num_kv_heads: Key and value heads; divides `heads`.
        head_dim: Width of a head.
        d_ff: Width inside an MLP.
        vocab: Number of token ids.
        seq: Length of the cache.
        chunk: Tokens of each sequence in one step.
        batch: Sequences.
        scan: Stack blocks and cache, and scan over them.
        dtype: Of parameters, cache and activations.
    """

    layers: int = 2
    d_model: int = 64
    heads: int = 8
    num_kv_heads: int = 4
    head_dim: int = 16
    d_ff: int = 128
    vocab: int = 256
    seq: int = 64
    chunk: int = 1
    batch: int = 16
    scan: bool = False
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.heads % self.num_kv_heads:
            raise ValueError(
                f"heads={self.heads} is not a multiple of num_kv_heads={self.num_kv_heads}"
            )


def init_block(key: jax.Array, config: ServeConfig) -> PyTree:
    d_model, d_ff, head_dim = config.d_model, config.d_ff, config.head_dim
    q_key, kv_key, o_key, up_key, down_key = jax.random.split(key, 5)
    kv_shape = (d_model, 2, config.num_kv_heads, head_dim)
    width = config.heads * head_dim
    return {
        "attn_norm": jnp.ones(d_model),
        "wq": scaled_normal(q_key, (d_model, config.heads, head_dim), d_model),
        "wkv": scaled_normal(kv_key, kv_shape, d_model),
        "wo": scaled_normal(o_key, (config.heads, head_dim, d_model), width),
        "mlp_norm": jnp.ones(d_model),
        "up": scaled_normal(up_key, (d_model, d_ff), d_model),
        "down": scaled_normal(down_key, (d_ff, d_model), d_ff),
    }


def init_state(key: jax.Array, config: ServeConfig) -> PyTree:
    """Make parameters, and a cache in which sequences have come differently far."""
    embed_key, position_key, cache_key, blocks_key = jax.random.split(key, 4)
    dtype = jnp.dtype(config.dtype)
    params = {
        "embed": 0.02 * jax.random.normal(embed_key, (config.vocab, config.d_model)),
        "blocks": init_layers(
            lambda block_key: init_block(block_key, config),
            blocks_key,
            config.layers,
            scan=config.scan,
        ),
        "norm": jnp.ones(config.d_model),
    }
    shape = (2, config.batch, config.num_kv_heads, config.seq, config.head_dim)
    cache = init_layers(
        lambda layer_key: jax.random.normal(layer_key, shape, dtype),
        cache_key,
        config.layers,
        scan=config.scan,
    )
    last = config.seq - 8 * config.chunk
    return {
        "params": jax.tree.map(lambda leaf: leaf.astype(dtype), params),
        "cache": cache,
        "position": jax.random.randint(position_key, (config.batch,), 0, last, dtype=jnp.int32),
    }


def written(cache: jax.Array, new: jax.Array, position: jax.Array) -> jax.Array:
    """Put new keys and values into a cache, each sequence's at its own position.

    Args:
        cache: [2, batch, num_kv_heads, seq, head_dim].
        new: [2, batch, num_kv_heads, chunk, head_dim].
        position: int32[batch].

    Returns:
        The cache.
    """

    def one(cache: jax.Array, new: jax.Array, position: jax.Array) -> jax.Array:
        return jax.lax.dynamic_update_slice_in_dim(cache, new, position, axis=2)

    return jax.vmap(one, in_axes=(1, 1, 0), out_axes=1)(cache, new, position)


def attend(q: jax.Array, cache: jax.Array, position: jax.Array) -> jax.Array:
    """Attend from a chunk to all that comes before each of its tokens.

    Args:
        q: Queries [batch, chunk, heads, head_dim].
        cache: [2, batch, num_kv_heads, seq, head_dim].
        position: int32[batch], of the chunk's first token.

    Returns:
        Of the shape and type of `q`.
    """
    batch, chunk, heads, head_dim = q.shape
    keys, values = cache
    num_kv_heads, seq = keys.shape[1:3]
    grouped = q.reshape(batch, chunk, num_kv_heads, heads // num_kv_heads, head_dim)
    scores = jnp.einsum("bqgre,bgke->bgrqk", grouped, keys).astype(jnp.float32)
    reach = position[:, None, None] + jnp.arange(chunk)[None, :, None]
    visible = (jnp.arange(seq)[None, None, :] <= reach)[:, None, None]
    scores = jnp.where(visible, scores / math.sqrt(head_dim), MASKED)
    weights = jax.nn.softmax(scores, axis=-1).astype(q.dtype)
    return jnp.einsum("bgrqk,bgke->bqgre", weights, values).reshape(q.shape)


def block(
    x: jax.Array, params: PyTree, cache: jax.Array, position: jax.Array
) -> tuple[jax.Array, jax.Array]:
    normal = rms_norm(x, params["attn_norm"])
    new = jnp.einsum("bsd,dthe->tbhse", normal, params["wkv"])
    cache = written(cache, new, position)
    mixed = attend(jnp.einsum("bsd,dhe->bshe", normal, params["wq"]), cache, position)
    x = x + jnp.einsum("bshe,hed->bsd", mixed, params["wo"])
    hidden = jax.nn.gelu(rms_norm(x, params["mlp_norm"]) @ params["up"])
    return x + hidden @ params["down"], cache


def serve_step(state: PyTree, batch: PyTree, config: ServeConfig) -> tuple[PyTree, jax.Array]:
    params, position = state["params"], state["position"]

    def layer(x: jax.Array, of_block: tuple[PyTree, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return block(x, *of_block, position)

    x = params["embed"][batch["tokens"]]
    if config.scan:
        x, cache = jax.lax.scan(layer, x, (params["blocks"], state["cache"]))
    else:
        cache = []
        for of_block in zip(params["blocks"], state["cache"], strict=True):
            x, block_cache = layer(x, of_block)
            cache.append(block_cache)
    x = rms_norm(x[:, -1], params["norm"])
    logits = (x @ params["embed"].T).astype(jnp.float32)
    return {"params": params, "cache": cache, "position": position + config.chunk}, logits


MEGATRON = {
    "params['embed']": ("model", None),
    "['wq']": (None, "model", None),
    "['wkv']": (None, None, "model", None),
    "['wo']": ("model", None, None),
    "['up']": (None, "model"),
    "['down']": ("model", None),
}
"""Heads, MLP width and vocabulary cut; the cache by heads."""


def build(name: str, config: ServeConfig) -> Workload:
    """Build the serving workload."""

    def make_batch(key: jax.Array) -> PyTree:
        shape = (config.batch, config.chunk)
        return {"tokens": jax.random.randint(key, shape, 0, config.vocab, dtype=jnp.int32)}

    def megatron(path: str, shape: tuple[int, ...]) -> tuple[str | None, ...] | None:
        if path.startswith("cache"):
            return (*[None] * (len(shape) - 3), "model", None, None)
        return rule_by_path_end(MEGATRON)(path, shape)

    return Workload(
        name=name,
        step=lambda state, batch: serve_step(state, batch, config),
        init=lambda key: init_state(key, config),
        make_batch=make_batch,
        megatron=megatron,
        by_example={"cache": 2 if config.scan else 1, "position": 0},
    )
