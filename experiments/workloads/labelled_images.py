"""Batches of labelled images for classifiers."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def image_batch(
    key: jax.Array, *, batch: int, image_size: int, classes: int
) -> dict[str, jax.Array]:
    """Draw random square images of three channels, and a class of each.

    Args:
        key: A PRNG key.
        batch: Number of images.
        image_size: Height and width.
        classes: Number of classes.

    Returns:
        `image`, float32[batch, image_size, image_size, 3], and `label`, int32[batch].
    """
    image_key, label_key = jax.random.split(key)
    return {
        "image": jax.random.normal(image_key, (batch, image_size, image_size, 3)),
        "label": jax.random.randint(label_key, (batch,), 0, classes, dtype=jnp.int32),
    }
