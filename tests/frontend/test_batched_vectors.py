"""Matmuls of a vector for each member of a batch, as sums of products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autoshard.frontend.batched_vectors import without_batched_vectors

DIMS = [
    # lhs, rhs, ((summed), (batch))
    ((4, 5), (4, 6, 5), (((1,), (2,)), ((0,), (0,)))),
    ((6, 5, 4), (5, 4), (((1,), (0,)), ((2,), (1,)))),
    ((2, 3, 7), (2, 5, 3, 7), (((2,), (3,)), ((0, 1), (0, 2)))),
    ((2, 1, 3, 7), (2, 5, 3, 7), (((3,), (3,)), ((0, 2), (0, 2)))),
    ((2, 3, 4), (2, 3, 4), (((1, 2), (1, 2)), ((0,), (0,)))),
]


def rewritten(run: Callable[..., Any], *args: Any) -> Any:
    closed = jax.make_jaxpr(run)(*args)
    return closed.replace(jaxpr=without_batched_vectors(closed.jaxpr))


def numbers(run: Callable[..., Any], *args: Any) -> Any:
    """The result of the rewritten program; True where it has no matmul."""
    found = rewritten(run, *args)
    (made,) = jax.core.eval_jaxpr(found.jaxpr, found.consts, *args)
    return made, "dot_general" not in str(found)


@pytest.mark.parametrize(("left", "right", "dims"), DIMS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_the_sum_is_the_matmul(left: Any, right: Any, dims: Any, dtype: str) -> None:
    rng = np.random.default_rng(0)
    args = [jnp.asarray(rng.integers(-4, 5, size=size), dtype) for size in (left, right)]

    def run(x: Any, y: Any) -> Any:
        return jax.lax.dot_general(x.reshape(left), y.reshape(right), dims)

    made, is_rewritten = numbers(run, *(arg.reshape(-1) for arg in args))
    expected = jax.lax.dot_general(*args, dims)
    assert is_rewritten
    assert made.dtype == expected.dtype
    np.testing.assert_array_equal(made, expected)


def test_bfloat16_is_summed_in_float32() -> None:
    ones = jnp.full((2, 4096), 1.0, jnp.bfloat16)

    def run(x: Any, y: Any) -> Any:
        return jnp.einsum("bk,bk->b", x * y[:, None], x)

    made, is_rewritten = numbers(run, ones, ones[:, 0])
    assert is_rewritten
    assert made.dtype == jnp.bfloat16
    assert np.all(np.asarray(made, np.float32) == 4096.0)  # bfloat16 alone stops at 256


@pytest.mark.parametrize(
    ("left", "right", "made"),
    [
        ("float8_e4m3fn", "float8_e5m2", "float32"),
        ("float8_e4m3fn", "bfloat16", "float32"),
        ("int4", "int4", "int32"),
        ("int8", "int8", "int32"),
        ("float16", "float16", None),
        ("complex64", "complex64", None),
    ],
)
def test_narrow_elements_are_widened_first(left: str, right: str, made: str | None) -> None:
    rng = np.random.default_rng(0)
    x, y = (jnp.asarray(rng.integers(-2, 3, size=(4, 6)), kind) for kind in (left, right))

    def run(x: Any, y: Any) -> Any:
        dims = (((1,), (1,)), ((0,), (0,)))
        return jax.lax.dot_general(x.reshape(4, 6), y, dims, preferred_element_type=made)

    found, is_rewritten = numbers(run, x.reshape(-1), y)
    assert is_rewritten
    assert found.dtype == (made or left)
    expected = np.sum(np.asarray(x, "complex64") * np.asarray(y, "complex64"), 1)
    np.testing.assert_array_equal(np.asarray(found, "complex64"), expected)


QUERY, KEYS = jnp.ones((4, 3, 8)), jnp.ones((4, 5, 3, 8))
SCORES = "bhd,bthd->bht"


def softmaxed(scores: Any) -> Any:
    return jax.nn.softmax(scores, -1)


@pytest.mark.parametrize(
    ("run", "is_rewritten"),
    [
        (lambda q, k: jnp.einsum(SCORES, q, k), False),
        (lambda q, k: jnp.einsum(SCORES, 2 * jnp.sin(q), k), False),
        (lambda q, k: jnp.einsum(SCORES, q / q.sum(-1, keepdims=True), k), True),
        (lambda q, k: jnp.einsum(SCORES, jax.jit(softmaxed)(q), k), True),
        (lambda q, k: jnp.einsum(SCORES, jax.checkpoint(softmaxed)(q), k), True),
        (lambda q, k: jnp.einsum(SCORES, q, k.at[jnp.arange(4), 2].set(q)), True),
        (lambda q, k: jnp.einsum(SCORES, q, jax.lax.dynamic_update_slice(k, -k, (0,) * 4)), False),
        (lambda q, k: jnp.einsum("bhd,bthd->bht", q[:, :1], k[:, :, :1]), True),
        (lambda q, k: jnp.einsum("bqhd,bthd->bhqt", q.reshape(4, 1, 3, 8), k), True),
        (lambda q, k: jnp.einsum("bqhd,bthd->bhqt", jnp.stack([q, q], 1), k), False),
        (lambda q, k: q.reshape(12, 8) @ k[0, 0, :2].reshape(2, 8).T, False),
    ],
)
def test_only_where_an_operand_was_just_reshaped(
    run: Callable[..., Any], *, is_rewritten: bool
) -> None:
    made, found = numbers(run, QUERY, KEYS)
    assert found is is_rewritten
    np.testing.assert_allclose(made, run(QUERY, KEYS), rtol=1e-5)


def test_what_a_loop_slices_is_reshaped() -> None:
    def run(queries: Any, keys: Any) -> Any:
        return jax.lax.map(lambda one: jnp.einsum(SCORES, *one), (queries, keys))

    made, is_rewritten = numbers(run, QUERY[None], KEYS[None])
    assert is_rewritten
    np.testing.assert_allclose(made, run(QUERY[None], KEYS[None]))


def test_a_reshape_long_before_does_not_count() -> None:
    def run(q: Any, k: Any) -> Any:
        q = q.reshape(4, 3, 8)
        for _ in range(7):
            q = jnp.sin(q)
        return jnp.einsum(SCORES, q, k)

    assert not numbers(run, QUERY.reshape(4, 24), KEYS)[1]


def test_a_program_without_is_itself() -> None:
    closed = jax.make_jaxpr(lambda x, w: jnp.sin(x) @ w)(jnp.ones((4, 3)), jnp.ones((3, 2)))
    assert without_batched_vectors(closed.jaxpr) is closed.jaxpr
