"""Batches of text for language models."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def token_batch(key: jax.Array, *, batch: int, seq: int, vocab: int) -> dict[str, jax.Array]:
    """Draw random text, and the same text one position later as targets.

    Args:
        key: A PRNG key.
        batch: Number of sequences.
        seq: Tokens in one sequence.
        vocab: Number of token ids.

    Returns:
        `tokens` and `targets`, int32[batch, seq] each.
    """
    text = jax.random.randint(key, (batch, seq + 1), 0, vocab, dtype=jnp.int32)
    return {"tokens": text[:, :-1], "targets": text[:, 1:]}
