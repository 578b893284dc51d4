"""Equal calls that reduce what was reshaped are told apart; all others stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src.core import check_jaxpr  # private; checked on jax 0.9.2 and 0.10.2
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.sharding import AbstractMesh

from autoshard.apply.constrain import constrain_jaxpr
from autoshard.apply.own_calls import with_own_calls
from autoshard.frontend.trace import trace
from autoshard.sharding import parse_mesh_sizes, parse_sharding

X = jax.ShapeDtypeStruct((4, 6, 16), jnp.float32)


def spread(x: Any) -> Any:
    """Of groups of four channels, over all positions."""
    return jnp.var(x.reshape(4, 6, 4, 4), axis=(1, 3), keepdims=True)


def twice(x: Any) -> Any:
    return spread(x) * spread(jnp.tanh(x))


def calls(closed: ClosedJaxpr) -> list[str]:
    return [eqn.params["name"] for eqn in closed.jaxpr.eqns if eqn.primitive.name == "jit"]


def renamed(fn: Callable[..., Any]) -> list[str]:
    closed = jax.make_jaxpr(fn)(X)
    return [b for a, b in zip(calls(closed), calls(with_own_calls(closed)), strict=True) if a != b]


def test_calls_of_one_function_get_a_name_each() -> None:
    found = renamed(twice)
    assert len(found) == len(set(found)) == 2
    assert all(name.startswith("_var_") for name in found)


def test_each_then_has_a_function_of_its_own() -> None:
    def functions(closed: ClosedJaxpr) -> int:
        text: str = jax.jit(jaxpr_as_fun(closed)).lower(X).as_text()
        return text.count("func.func private @_var")

    closed = jax.make_jaxpr(twice)(X)
    assert (functions(closed), functions(with_own_calls(closed))) == (1, 2)


def test_so_have_their_gradients() -> None:
    found = renamed(jax.grad(lambda x: twice(x).sum()))
    assert len(found) == len(set(found)) == 4


def test_a_function_that_is_called_once_keeps_its_name() -> None:
    closed = jax.make_jaxpr(spread)(X)
    assert with_own_calls(closed) is closed


def test_a_plan_without_constraints_tells_them_apart_too() -> None:
    closed = jax.make_jaxpr(twice)(X)
    mesh = AbstractMesh((2,), ("x",))
    assert calls(constrain_jaxpr(closed, {}, mesh)) == calls(with_own_calls(closed))


def test_what_reduces_one_dimension_alone_stays() -> None:
    def one(x: Any) -> Any:
        return jnp.var(x.reshape(4, 6, 4, 4), axis=3)

    assert renamed(lambda x: one(x) * one(jnp.tanh(x))) == []


def test_so_does_what_reads_nothing_reshaped() -> None:
    def plain(x: Any) -> Any:
        return jnp.var(x, axis=(1, 2))

    assert renamed(lambda x: plain(x) * plain(jnp.tanh(x))) == []


def test_and_what_reads_a_product_of_it() -> None:
    def of_product(x: Any) -> Any:
        grouped = x.reshape(4, 6, 4, 4)
        return jnp.var(grouped @ jnp.ones((4, 4)), axis=(1, 3))

    assert renamed(lambda x: of_product(x) * of_product(jnp.tanh(x))) == []


def test_or_of_one_in_a_call_between() -> None:
    mixed = jax.jit(lambda grouped: grouped @ jnp.ones((4, 4)))

    def of_product(x: Any) -> Any:
        return jnp.var(mixed(x.reshape(4, 6, 4, 4)), axis=(1, 3))

    assert renamed(lambda x: of_product(x) * of_product(jnp.tanh(x))) == []


def test_the_program_computes_the_same_and_is_sound() -> None:
    closed = jax.make_jaxpr(jax.grad(lambda x: twice(x).sum()))(X)
    found = with_own_calls(closed)
    check_jaxpr(found.jaxpr)
    x = np.random.default_rng(0).normal(size=X.shape).astype(np.float32)
    np.testing.assert_array_equal(jaxpr_as_fun(found)(x)[0], jaxpr_as_fun(closed)(x)[0])


def test_a_program_with_constraints_has_them_apart() -> None:
    closed = trace(twice, (X,), mesh=parse_mesh_sizes("x=2")).jaxpr
    cut = {"in.0": parse_sharding('<@mesh, [{"x"}, {}, {}]>')}
    found = calls(constrain_jaxpr(closed, cut, AbstractMesh((2,), ("x",))))
    assert len(set(found)) == len(found)
