"""One step of decoding with a Llama: a token for every sequence, keys and values kept in a cache.

All sequences stand at the same position. The step gives logits; whoever calls it picks the tokens.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from experiments.workloads.attention import MASKED
from experiments.workloads.llama import (
    MEGATRON,
    LlamaConfig,
    init_params,
    rotary_angles,
    rotate,
    swiglu,
)
from experiments.workloads.megatron import rule_by_path_end
from experiments.workloads.normalization import rms_norm
from experiments.workloads.workload import PyTree, Workload


def init_cache(key: jax.Array, config: LlamaConfig) -> PyTree:
    """Make a cache with keys and values in it, as if something had been decoded.

    Returns:
        A list of `{"k": ..., "v": ...}`, one for each block, or these stacked where blocks are;
        arrays of the compute type, [batch, seq, num_kv_heads, head_dim].
    """
    shape = (config.batch, config.seq, config.num_kv_heads, config.d_model // config.heads)
    dtype = jnp.dtype(config.compute_dtype)

    def block_cache(key: jax.Array) -> PyTree:
        k_key, v_key = jax.random.split(key)
        return {
            "k": jax.random.normal(k_key, shape, dtype),
            "v": jax.random.normal(v_key, shape, dtype),
        }

    keys = jax.random.split(key, config.layers)
    return jax.vmap(block_cache)(keys) if config.scan else [block_cache(k) for k in keys]


def init_state(key: jax.Array, config: LlamaConfig) -> PyTree:
    """Make parameters of the compute type and a cache that is half full."""
    params_key, cache_key = jax.random.split(key)
    dtype = jnp.dtype(config.compute_dtype)
    return {
        "params": jax.tree.map(lambda leaf: leaf.astype(dtype), init_params(params_key, config)),
        "cache": init_cache(cache_key, config),
        "position": jnp.asarray(config.seq // 2, jnp.int32),
    }


def cached_attention(q: jax.Array, cache: PyTree, position: jax.Array) -> jax.Array:
    """Attend from one position to all up to it.

    Args:
        q: Queries [batch, 1, heads, head_dim].
        cache: Keys and values [batch, seq, num_kv_heads, head_dim]; `num_kv_heads` divides
            `heads`.
        position: int32[], where the query stands.

    Returns:
        Mixed values [batch, 1, heads, head_dim] of the type of the cache.
    """
    batch, _, heads, head_dim = q.shape
    _, seq, num_kv_heads, _ = cache["k"].shape
    grouped = q.reshape(batch, num_kv_heads, heads // num_kv_heads, head_dim)
    scores = jnp.einsum("bgrd,bkgd->bgrk", grouped, cache["k"]).astype(jnp.float32)
    scores = jnp.where(jnp.arange(seq) <= position, scores / math.sqrt(head_dim), MASKED)
    weights = jax.nn.softmax(scores, axis=-1).astype(q.dtype)
    mixed = jnp.einsum("bgrk,bkgd->bgrd", weights, cache["v"])
    return mixed.reshape(batch, 1, heads, head_dim)


def block(
    x: jax.Array,
    params: PyTree,
    cache: PyTree,
    position: jax.Array,
    angles: tuple[jax.Array, jax.Array],
) -> tuple[jax.Array, PyTree]:
    weights, normal = params["attn"], rms_norm(x, params["attn_norm"])
    q = rotate(jnp.einsum("bsd,dhe->bshe", normal, weights["wq"]), *angles)
    k = rotate(jnp.einsum("bsd,dhe->bshe", normal, weights["wk"]), *angles)
    v = jnp.einsum("bsd,dhe->bshe", normal, weights["wv"])
    cache = {
        "k": jax.lax.dynamic_update_slice_in_dim(cache["k"], k, position, axis=1),
        "v": jax.lax.dynamic_update_slice_in_dim(cache["v"], v, position, axis=1),
    }
    mixed = cached_attention(q, cache, position)
    x = x + jnp.einsum("bshe,hed->bsd", mixed, weights["wo"])
    return x + swiglu(rms_norm(x, params["mlp_norm"]), params["mlp"]), cache


def decode_step(state: PyTree, batch: PyTree, config: LlamaConfig) -> tuple[PyTree, jax.Array]:
    params, position = state["params"], state["position"]
    every_angle = rotary_angles(config.seq, config.d_model // config.heads, config.rope_theta)
    cos, sin = (jax.lax.dynamic_slice_in_dim(part, position, 1) for part in every_angle)

    def layer(x: jax.Array, of_block: tuple[PyTree, PyTree]) -> tuple[jax.Array, PyTree]:
        return block(x, *of_block, position, (cos, sin))

    x = params["embed"][batch["tokens"]][:, None, :]
    if config.scan:
        x, cache = jax.lax.scan(layer, x, (params["blocks"], state["cache"]))
    else:
        cache = []
        for of_block in zip(params["blocks"], state["cache"], strict=True):
            x, block_cache = layer(x, of_block)
            cache.append(block_cache)
    x = rms_norm(x[:, 0], params["norm"])
    logits = (x @ params["head"]).astype(jnp.float32)
    return {"params": params, "cache": cache, "position": position + 1}, logits


CACHE = {
    "['k']": (None, "model", None),
    "['v']": (None, "model", None),
}
"""The cache cut by heads, beside what a Llama cuts."""


def build(name: str, config: LlamaConfig) -> Workload:
    """Build the decoding workload; `seq` is the length of the cache."""

    def make_batch(key: jax.Array) -> PyTree:
        tokens = jax.random.randint(key, (config.batch,), 0, config.vocab, dtype=jnp.int32)
        return {"tokens": tokens}

    def init(key: jax.Array) -> PyTree:
        return init_state(key, config)

    return Workload(
        name=name,
        step=lambda state, batch: decode_step(state, batch, config),
        init=init,
        make_batch=make_batch,
        megatron=rule_by_path_end({**MEGATRON, **CACHE}),
        by_example={"cache": 1 if config.scan else 0},
    )
