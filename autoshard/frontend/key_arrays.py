"""Typed PRNG keys: what JAX shows as one element is a row of words to the compiler.

The words of a key stay together, so their dimension is cut by nothing; a plan speaks of keys in the
shape that JAX shows.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from autoshard.sharding import DimSharding, Sharding


def num_word_dims(aval: jax.core.ShapedArray) -> int:
    """Dimensions the compiler sees behind those that JAX shows: 0 but for typed PRNG keys."""
    if not jnp.issubdtype(aval.dtype, jax.dtypes.prng_key):
        return 0
    shown = jax.ShapeDtypeStruct(aval.shape, aval.dtype)
    return len(jax.eval_shape(jax.random.key_data, shown).shape) - len(aval.shape)


def with_word_dims(sharding: Sharding | None, aval: jax.core.ShapedArray) -> Sharding | None:
    """A sharding of keys as the compiler needs it; free keys are free but for their words."""
    extra = num_word_dims(aval)
    if not extra:
        return sharding
    shown = sharding or Sharding((DimSharding(is_open=True),) * len(aval.shape))
    return Sharding((*shown.dims, *(DimSharding(),) * extra), shown.replicated, shown.unreduced)


def without_word_dims(sharding: Sharding, aval: jax.core.ShapedArray) -> Sharding:
    """The sharding of keys as JAX shows them."""
    if not num_word_dims(aval):
        return sharding
    return Sharding(sharding.dims[: len(aval.shape)], sharding.replicated, sharding.unreduced)
