"""Results that are known become constants: numbers stay, and nothing is sent for them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

import autoshard
from autoshard.frontend.known_results import without_known_results


def row(index: int, **mode: Any) -> Any:
    return lambda x: x.at[index].get(mode="fill", **mode)


def names(closed: ClosedJaxpr) -> list[str]:
    return [eqn.primitive.name for eqn in closed.jaxpr.eqns]


def rewritten(function: Any, x: Any) -> ClosedJaxpr:
    closed = jax.make_jaxpr(function)(x)
    return closed.replace(jaxpr=without_known_results(closed.jaxpr))


@pytest.mark.parametrize("dtype", ["float32", "int8", "uint16", "bool"])
@pytest.mark.parametrize("mode", [{}, {"fill_value": 1}])
def test_a_row_that_is_not_there_is_what_it_is_filled_with(dtype: str, mode: Any) -> None:
    x = jnp.zeros((3, 4), dtype)
    closed = rewritten(row(3, **mode), x)
    assert "gather" not in names(closed)
    (found,) = jaxpr_as_fun(closed)(x)
    np.testing.assert_array_equal(found, row(3, **mode)(x))


@pytest.mark.parametrize(
    "function",
    [row(2), lambda x: x[jnp.array([3, 0])], lambda x: row(x[0, 0].astype(int))(x)],
)
def test_rows_that_are_there_or_may_be_are_read(function: Any) -> None:
    jaxpr = jax.make_jaxpr(function)(jnp.zeros((3, 4))).jaxpr
    assert "gather" in {eqn.primitive.name for eqn in jaxpr.eqns}
    assert without_known_results(jaxpr) is jaxpr


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool"])
@pytest.mark.parametrize(
    "function",
    [lax.eq, lax.ne, lax.ge, lax.le, lax.gt, lax.lt, lax.bitwise_xor],
)
def test_what_integers_are_to_themselves_is_known(function: Any, dtype: str) -> None:
    x = jnp.arange(4).astype(dtype)
    closed = rewritten(lambda x: function(x, x), x)
    assert names(closed) == ["broadcast_in_dim"]
    (found,) = jaxpr_as_fun(closed)(x)
    np.testing.assert_array_equal(found, function(x, x))


@pytest.mark.parametrize("function", [jnp.argmax, jnp.argmin])
def test_the_largest_of_one_is_the_first(function: Any) -> None:
    x = jnp.array([[jnp.nan], [2.0], [1.0]])
    closed = rewritten(lambda x: function(x, axis=1), x)
    assert names(closed) == ["broadcast_in_dim"]
    np.testing.assert_array_equal(jaxpr_as_fun(closed)(x)[0], function(x, axis=1))
    among_three = jax.make_jaxpr(lambda x: function(x, axis=0))(x).jaxpr
    assert without_known_results(among_three) is among_three


def test_what_is_known_may_be_a_scalar() -> None:
    x = jnp.array([2.0])
    closed = rewritten(lambda x: (jnp.argmax(x), jnp.sum(x)), x)
    assert "argmax" not in names(closed)
    assert [*map(float, jaxpr_as_fun(closed)(x))] == [0.0, 2.0]


def test_what_floats_are_to_themselves_depends_on_them() -> None:
    jaxpr = jax.make_jaxpr(lambda x: (x == x, x - x))(jnp.zeros(3)).jaxpr
    assert without_known_results(jaxpr) is jaxpr


def test_keys_are_read_as_they_are() -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    jaxpr = jax.make_jaxpr(lambda keys: (keys == keys, keys.at[3].get(mode="fill")))(keys).jaxpr
    assert without_known_results(jaxpr) is jaxpr


def test_nothing_is_sent_for_a_row_that_is_not_there() -> None:
    plan = autoshard.optimize(
        row(4, fill_value=0),
        jax.ShapeDtypeStruct((4, 512), jnp.float32),
        mesh="data=2,model=4",
        hardware="cpu-host",
        in_shardings=jax.P("data", "model"),
        out_shardings=jax.P(),
        baselines=False,
    )
    assert plan.data.collectives == ()


@pytest.mark.parametrize(
    "function",
    [
        lambda x, u: x.at[3].set(u[0]),
        lambda x, u: x.at[4].add(u[0]),
        lambda x, u: x.at[:, 7].multiply(u[:3, 0]),
    ],
)
def test_what_is_scattered_out_of_bounds_is_dropped(function: Any) -> None:
    x, u = jnp.ones((3, 4)), jnp.full((4, 4), 2.0)
    closed = jax.make_jaxpr(function)(x, u)
    found = closed.replace(jaxpr=without_known_results(closed.jaxpr))
    assert names(found)[-1] == "copy"
    np.testing.assert_array_equal(jaxpr_as_fun(found)(x, u)[0], function(x, u))


@pytest.mark.parametrize("index", [2, -1])
def test_what_is_scattered_into_a_row_that_is_there_is_kept(index: int) -> None:
    jaxpr = jax.make_jaxpr(lambda x: x.at[index].set(1.0))(jnp.ones((3, 4))).jaxpr
    assert without_known_results(jaxpr) is jaxpr


@pytest.mark.parametrize(
    "function",
    [
        lambda zeros: jnp.roll(zeros, 1, 0),
        lambda zeros: zeros.T[1:, ::-1],
        lambda zeros: jnp.concatenate([zeros, zeros.reshape(3, 4)]),
        lambda zeros: lax.pad(zeros, 0.0, ((1, 1, 0), (0, 2, 0))),
    ],
)
def test_what_is_moved_of_zeros_is_zeros(function: Any) -> None:
    closed = rewritten(lambda x: x[0, 0] + function(jnp.zeros((3, 4))), jnp.ones((3, 4)))
    sent = {"concatenate", "pad", "rev", "jit"}
    assert sent.isdisjoint(names(closed))
    np.testing.assert_array_equal(
        jaxpr_as_fun(closed)(jnp.ones((3, 4)))[0], 1 + function(jnp.zeros((3, 4)))
    )


def test_what_two_scalars_fill_is_moved() -> None:
    jaxpr = jax.make_jaxpr(lambda: jnp.concatenate([jnp.zeros(3), jnp.ones(3)]))().jaxpr
    assert without_known_results(jaxpr) is jaxpr


def test_nothing_is_sent_for_a_roll_of_zeros_or_a_dropped_row() -> None:
    def both(x: Any) -> Any:
        zeros = jnp.roll(jnp.zeros_like(x), 1, 0)
        return zeros, x.at[8].set(jnp.sum(x, 0))

    plan = autoshard.optimize(
        both,
        jax.ShapeDtypeStruct((8, 512), jnp.float32),
        mesh="data=2,model=4",
        hardware="cpu-host",
        in_shardings=jax.P("data", "model"),
        out_shardings=(jax.P("data"), jax.P("data", "model")),
        baselines=False,
    )
    assert plan.data.collectives == ()
