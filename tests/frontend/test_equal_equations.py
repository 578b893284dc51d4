"""Equal equations of a program are one, as compilers make them; nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.experimental import pallas as pl
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun

import autoshard
from autoshard.frontend.equal_equations import without_equal_equations

X = jnp.arange(12.0).reshape(3, 4)
ROWS = jax.ShapeDtypeStruct((3, 4), jnp.float32)
HALF = jax.jit(lambda x: x * 0.5)


def _copy(read: Any, written: Any) -> None:
    written[...] = read[...]


def names(closed: ClosedJaxpr) -> list[str]:
    return [eqn.primitive.name for eqn in closed.jaxpr.eqns]


def merged(function: Callable[..., Any], *args: Any) -> ClosedJaxpr:
    closed = jax.make_jaxpr(function)(*args)
    return ClosedJaxpr(without_equal_equations(closed.jaxpr), closed.consts)


@pytest.mark.parametrize(
    ("function", "left"),
    [
        (lambda x: jnp.tanh(x) + jnp.sin(jnp.tanh(x)), ["tanh", "sin", "add"]),
        (lambda x: (jnp.exp(x * 2.0), jnp.exp(x * 2.0)), ["mul", "exp"]),
        (lambda x: HALF(x) + jnp.sin(HALF(x)), ["jit", "sin", "add"]),
        (lambda x: x.sum(0) + x[0] * x.sum(0), None),  # once over rows
        (lambda x: (x * 2.0, x * 2.5), ["mul", "mul"]),
        (lambda x: (x.sum(0), x.sum(1)), ["reduce_sum", "reduce_sum"]),
        (lambda x: (x.astype(jnp.int32), x.astype(jnp.int16)), ["convert_element_type"] * 2),
        (lambda x: (x - 0.0, x - (-0.0)), ["sub", "sub"]),
    ],
)
def test_equal_equations_are_one(function: Callable[..., Any], left: list[str] | None) -> None:
    closed = merged(function, X)
    if left is None:
        assert names(closed).count("reduce_sum") == 1
    else:
        assert names(closed) == left
    for new, old in zip(jaxpr_as_fun(closed)(X), jax.tree.leaves(function(X)), strict=True):
        np.testing.assert_array_equal(new, old)


def test_what_is_kept_apart_on_purpose_stays() -> None:
    def apart(x: jax.Array) -> Any:
        return jnp.tanh(x) + jnp.tanh(jax.lax.optimization_barrier(x))

    def barriers(x: jax.Array) -> Any:
        return jax.lax.optimization_barrier(x) + jax.lax.optimization_barrier(x)

    def told(x: jax.Array) -> jax.Array:
        jax.debug.print("x")
        jax.debug.print("x")
        return x + 1

    assert names(merged(apart, X)).count("tanh") == 2
    assert names(merged(barriers, X)).count("optimization_barrier") == 2
    assert len(names(merged(told, X))) == 3
    kernel = jax.jit(pl.pallas_call(_copy, out_shape=ROWS, interpret=True))
    assert names(merged(lambda x: kernel(x) + kernel(x), X)).count("jit") == 2
    layer = jax.checkpoint(lambda x: jnp.tanh(x) ** 2)
    assert len({*names(merged(lambda x: layer(x) + layer(x), X))}) == 2
    assert len(names(merged(lambda x: layer(x) + layer(x), X))) == 3


@pytest.mark.parametrize("wrap", [lambda draw: draw, jax.jit])
def test_draws_without_a_key_differ(wrap: Callable[..., Any]) -> None:
    draw = wrap(lambda: jax.lax.rng_uniform(0.0, 1.0, (8,)))

    def program(x: jax.Array) -> Any:
        return draw() - draw() + 0 * x

    plan = autoshard.optimize(program, jnp.zeros(8), mesh="x=8", hardware="tpu-v5e")
    assert np.abs(np.asarray(plan.jit(program)(jnp.zeros(8)))).max() > 0


def test_a_function_that_holds_a_barrier_stays() -> None:
    inner = jax.jit(lambda x: jnp.tanh(jax.lax.optimization_barrier(x)))
    outer = jax.jit(lambda x: inner(x) * 2)
    assert names(merged(lambda x: outer(x) + outer(x), X)) == ["jit", "jit", "add"]


def test_bodies_are_looked_through_and_stay_shared() -> None:
    twice = jax.jit(lambda x: jnp.tanh(x) + jnp.sin(jnp.tanh(x)))

    def program(x: jax.Array) -> Any:
        return jax.lax.scan(lambda c, _: (twice(c), jnp.cos(c) + jnp.cos(c)), twice(x + 1), None, 3)

    closed = merged(program, X)
    lowered = jax.jit(jaxpr_as_fun(closed)).lower(X).as_text()
    assert lowered.count("stablehlo.tanh") == 1  # one function, called twice
    assert lowered.count("stablehlo.cosine") == 1


def test_a_program_without_equal_equations_is_itself() -> None:
    jaxpr = jax.make_jaxpr(lambda x: jnp.tanh(HALF(x) @ x.T))(X).jaxpr
    assert without_equal_equations(jaxpr) is jaxpr


@given(
    st.lists(st.tuples(st.sampled_from("+*s"), st.integers(0, 5), st.integers(0, 5)), min_size=1)
)
def test_numbers_stay_and_a_second_time_finds_nothing(steps: list[tuple[str, int, int]]) -> None:
    def program(x: jax.Array) -> tuple[jax.Array, ...]:
        made = [x, x + 1]
        for kind, left, right in steps:
            a, b = made[left % len(made)], made[right % len(made)]
            made.append(a + b if kind == "+" else a * b if kind == "*" else jnp.sin(a))
        return tuple(made)

    closed = merged(program, X)
    once = [
        (eqn.primitive, *(str(a) if isinstance(a, Literal) else a for a in eqn.invars))
        for eqn in closed.jaxpr.eqns
    ]
    assert len(set(once)) == len(once)
    assert without_equal_equations(closed.jaxpr) is closed.jaxpr
    for new, old in zip(jaxpr_as_fun(closed)(X), program(X), strict=True):
        np.testing.assert_array_equal(new, old)


def test_a_quantization_written_twice_is_planned_once() -> None:
    def program(x: jax.Array, w: jax.Array, v: jax.Array) -> Any:
        def few(t: jax.Array) -> jax.Array:
            return (t * 2).astype(jnp.int8).astype(jnp.bfloat16)

        return few(x) @ w, few(x).T @ v

    x = jax.ShapeDtypeStruct((256, 256), jnp.bfloat16)
    plan = autoshard.optimize(program, x, x, x, mesh="data=2", hardware="tpu-v5e")
    graph = plan.solved.solution.graph if plan.solved and plan.solved.solution else None
    assert graph is not None
    assert sum(op.name == "multiply" for op in graph.ops) == 1
