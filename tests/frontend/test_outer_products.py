"""Matmuls that sum one term, as products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autoshard.frontend.outer_products import without_outer_products

DIMS = [
    # lhs, rhs, ((summed), (batch))
    ((4, 1), (1, 3), (((1,), (0,)), ((), ()))),
    ((1, 4), (3, 1), (((0,), (1,)), ((), ()))),
    ((5, 4, 1), (3, 5, 1), (((2,), (2,)), ((0,), (1,)))),
    ((5, 1, 2, 4), (2, 3, 5, 1), (((1,), (3,)), ((2, 0), (0, 2)))),
    ((1,), (1,), (((0,), (0,)), ((), ()))),
    ((4, 1, 1), (1, 3, 1), (((1, 2), (0, 2)), ((), ()))),
    ((4,), (3,), (((), ()), ((), ()))),
]


def rewritten(run: Callable[..., Any], *args: Any) -> Any:
    """The program without outer products."""
    closed = jax.make_jaxpr(run)(*args)
    return closed.replace(jaxpr=without_outer_products(closed.jaxpr))


def primitives(closed: Any) -> set[str]:
    return {eqn.primitive.name for eqn in closed.jaxpr.eqns}


@pytest.mark.parametrize(("left", "right", "dims"), DIMS)
def test_the_product_is_the_matmul(left: Any, right: Any, dims: Any) -> None:
    rng = np.random.default_rng(0)
    args = rng.normal(size=left).astype("float32"), rng.normal(size=right).astype("float32")

    def run(x: Any, y: Any) -> Any:
        return jax.lax.dot_general(x, y, dims)

    found = rewritten(run, *args)
    assert "dot_general" not in primitives(found)
    (made,) = jax.core.eval_jaxpr(found.jaxpr, found.consts, *args)
    np.testing.assert_allclose(made, run(*args), rtol=1e-6)


def test_operands_are_widened_before_they_are_multiplied() -> None:
    left, right = jnp.full((2, 1), 1.0078125, jnp.bfloat16), jnp.full((1, 2), 1.0078125, "bfloat16")

    def run(x: Any, y: Any) -> Any:
        return jax.lax.dot(x, y, preferred_element_type=jnp.float32)

    found = rewritten(run, left, right)
    (made,) = jax.core.eval_jaxpr(found.jaxpr, found.consts, left, right)
    assert made.dtype == jnp.float32
    assert np.all(made == np.float32(1.0078125) ** 2)


def test_bodies_are_rewritten_too() -> None:
    def loop(x: Any, y: Any) -> Any:
        start = jnp.zeros((3, 4))
        return jax.lax.scan(lambda total, row: (total + row[:, None] @ y, None), start, x)[0]

    args = jnp.ones((2, 3)), jnp.ones((1, 4))
    found = rewritten(loop, *args)
    assert "dot_general" not in str(found)
    (made,) = jax.core.eval_jaxpr(found.jaxpr, found.consts, *args)
    np.testing.assert_allclose(made, loop(*args))


def test_a_program_without_is_itself() -> None:
    def run(x: Any, y: Any) -> Any:
        return jax.lax.scan(lambda total, row: (total + row @ y, None), jnp.zeros(2), x)[0]

    closed = jax.make_jaxpr(run)(jnp.ones((4, 3)), jnp.ones((3, 2)))
    assert without_outer_products(closed.jaxpr) is closed.jaxpr


def test_a_body_that_two_equations_hold_stays_one() -> None:
    widen = jax.jit(lambda x, y: x[:, None] @ y)
    args = jnp.ones(3), jnp.ones((1, 4))
    found = rewritten(lambda x, y: widen(x, y) + widen(jnp.sin(x), y), *args)
    first, second = (eqn.params["jaxpr"] for eqn in found.jaxpr.eqns if "jaxpr" in eqn.params)
    assert first is second
    assert "dot_general" not in str(found)
