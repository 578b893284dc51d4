"""Compile a scheduled product, run it, and compare with `jnp.einsum` and the formulas."""

from __future__ import annotations

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np

from autoshard.apply.scheduled.received import received_bytes, total_received_bytes
from autoshard.loops import messages
from tests.schedules.algorithms import Case, Sizes


def matrices(sizes: Sizes, dtype: str) -> tuple[jax.Array, jax.Array]:
    m, n, k = sizes
    draw = np.random.default_rng(11)
    return (
        jnp.asarray(draw.normal(size=(m, k)), dtype),
        jnp.asarray(draw.normal(size=(k, n)), dtype),
    )


def compiled(case: Case, sizes: Sizes, dtype: str = "float32") -> jax.stages.Compiled:
    """The product, with its operands where it wants them."""
    product = case.make(case.mesh())
    a, b = matrices(sizes, dtype)
    shardings = product.shardings(a.shape, b.shape)
    return jax.jit(product, in_shardings=shardings[:2]).lower(a, b).compile()


def check_case(case: Case, sizes: Sizes, dtype: str) -> None:
    """Value, place of the result, and words received per device."""
    a, b = matrices(sizes, dtype)
    program = compiled(case, sizes, dtype)
    shardings = case.make(case.mesh()).shardings(a.shape, b.shape)
    value = program(jax.device_put(a, shardings[0]), jax.device_put(b, shardings[1]))
    assert value.dtype == dtype
    assert value.sharding.is_equivalent_to(shardings[2], 2)
    near = 1e-5 if dtype == "float32" else 1e-13
    expected = np.einsum("ik,kj->ij", np.asarray(a, "float64"), np.asarray(b, "float64"))
    np.testing.assert_allclose(np.asarray(value), expected, rtol=near, atol=near * 10)
    np.testing.assert_allclose(
        np.asarray(value), np.asarray(jnp.einsum("ik,kj->ij", a, b)), rtol=near, atol=near * 10
    )
    text = program.as_text() or ""
    received = total_received_bytes(text) / a.dtype.itemsize
    assert received == case.volume(*sizes).words
    predicted: dict[str, Fraction] = {}
    for message in messages(case.make(case.mesh()).placed(a.shape, b.shape).spread()):
        words = message.received * message.count
        predicted[message.kind] = predicted.get(message.kind, Fraction(0)) + words
    compiled_words: dict[str, Fraction] = {}
    for found in received_bytes(text):
        words = found.num_bytes * found.count / a.dtype.itemsize
        compiled_words[found.kind] = compiled_words.get(found.kind, Fraction(0)) + words
    assert compiled_words == predicted
