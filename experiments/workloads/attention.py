"""Attention, written out in einsums; scores and softmax in float32."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

MASKED = -1e30


def causal_softmax(scores: jax.Array) -> jax.Array:
    """Turn scores into weights over the positions not after each query's own.

    Args:
        scores: float32[..., seq, seq], queries before keys.

    Returns:
        float32[..., seq, seq]; each row sums to 1, and is 0 right of the diagonal.
    """
    seq = scores.shape[-1]
    causal = jnp.tril(jnp.ones((seq, seq), dtype=bool))
    return jax.nn.softmax(jnp.where(causal, scores, MASKED), axis=-1)


def full_attention(
    q: jax.Array, k: jax.Array, v: jax.Array, seen: jax.Array | None = None
) -> jax.Array:
    """Attend to every key, or to those that are marked.

    Args:
        q: Queries [batch, queries, heads, head_dim].
        k: Keys [batch, keys, heads, head_dim].
        v: Values, likewise.
        seen: bool, broadcasts to [batch, heads, queries, keys]; None for all.

    Returns:
        Mixed values [batch, queries, heads, head_dim] of the type of `v`.
    """
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) / math.sqrt(q.shape[-1])
    if seen is not None:
        scores = jnp.where(seen, scores, MASKED)
    weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def causal_attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Attend with one key and value head per query head.

    Args:
        q: Queries [batch, seq, heads, head_dim].
        k: Keys, likewise.
        v: Values, likewise.

    Returns:
        Mixed values [batch, seq, heads, head_dim] of the type of `v`.
    """
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32)
    weights = causal_softmax(scores / math.sqrt(q.shape[-1])).astype(v.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def grouped_causal_attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Attend with each key and value head shared by a group of query heads.

    Args:
        q: Queries [batch, seq, heads, head_dim].
        k: Keys [batch, seq, num_kv_heads, head_dim]; `num_kv_heads` divides `heads`.
        v: Values, likewise.

    Returns:
        Mixed values [batch, seq, heads, head_dim] of the type of `v`.

    Source: Ainslie et al. (2023), grouped-query attention.
    """
    batch, seq, heads, head_dim = q.shape
    num_kv_heads = k.shape[2]
    grouped = q.reshape(batch, seq, num_kv_heads, heads // num_kv_heads, head_dim)
    scores = jnp.einsum("bqgrd,bkgd->bgrqk", grouped, k).astype(jnp.float32)
    weights = causal_softmax(scores / math.sqrt(head_dim)).astype(v.dtype)
    mixed = jnp.einsum("bgrqk,bkgd->bqgrd", weights, v)
    return mixed.reshape(batch, seq, heads, head_dim)
