"""Conditionals whose branch is known, and carries that a loop hands on as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from autoshard.frontend.dead_code import without_dead_equations
from autoshard.frontend.known_control import without_known_control

X = jnp.arange(12.0).reshape(3, 4)
MESH = jax.sharding.AbstractMesh((2,), ("x",), axis_types=(AxisType.Auto,))


def settled(function: Callable[..., Any], *args: Any) -> ClosedJaxpr:
    closed = jax.make_jaxpr(function)(*args)
    return ClosedJaxpr(without_dead_equations(without_known_control(closed.jaxpr)), closed.consts)


def names(closed: ClosedJaxpr) -> list[str]:
    return [eqn.primitive.name for eqn in closed.jaxpr.eqns]


def held(x: jax.Array) -> Any:
    return lax.with_sharding_constraint(x, NamedSharding(MESH, PartitionSpec(None, "x")))


def selected(x: jax.Array) -> Any:
    return jnp.where(x > 0, x, x)


def unknown(x: jax.Array) -> Any:
    return (jnp.sum(x) > 0).astype(jnp.int32) + 1


def handed_on(through: Callable[[jax.Array], Any]) -> Callable[[jax.Array], Any]:
    """A loop that sums up what it hands on through a function."""

    def run(x: jax.Array) -> Any:
        start = (x, jnp.zeros(()))
        return lax.fori_loop(
            0, unknown(x), lambda _, c: (through(c[0]), c[1] + jnp.sum(c[0])), start
        )

    return run


@pytest.mark.parametrize(
    ("function", "left"),
    [
        (lambda x: lax.switch(1, [jnp.sin, jnp.cos, jnp.tan], x), ["cos"]),
        (lambda x: lax.switch(7, [jnp.sin, jnp.cos, jnp.tan], x), ["tan"]),
        (lambda x: lax.cond(x.shape[0] > 2, jnp.sin, jnp.cos, x), ["sin"]),
        (lambda x: lax.switch(0, [lambda y: y, jnp.sin], x) + 1.0, ["add"]),
        (
            lambda x: lax.cond(True, lambda y: lax.cond(False, jnp.sin, jnp.cos, y), jnp.tan, x),
            ["cos"],
        ),
        (
            jax.checkpoint(lambda y: lax.cond(True, jnp.sin, jnp.cos, y)),
            ["remat2"],
        ),
        (lambda x: lax.fori_loop(0, 0, lambda _, c: jnp.sin(c), x) + 1.0, ["add"]),
        (lambda x: handed_on(held)(x)[0], ["sharding_constraint"]),
        (lambda x: handed_on(selected)(x)[0] * 2.0, ["mul"]),
        (lambda x: lax.scan(lambda c, r: (held(c), r + c), x, X)[0], ["sharding_constraint"]),
    ],
)
def test_control_that_is_known_is_no_control(function: Callable[..., Any], left: list[str]) -> None:
    closed = settled(function, X)
    assert names(closed) == left
    assert "cond" not in str(closed)


def test_a_loop_reads_what_it_hands_on_from_outside() -> None:
    closed = settled(handed_on(selected), X)
    (loop,) = (eqn for eqn in closed.jaxpr.eqns if eqn.primitive.name == "while")
    assert loop.params["body_nconsts"] == 1
    assert [var.aval.shape for var in loop.outvars] == [(), (), ()]
    for new, old in zip(jaxpr_as_fun(closed)(X), handed_on(lambda c: c)(X), strict=True):
        np.testing.assert_array_equal(new, old)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: lax.switch(unknown(x), [jnp.sin, jnp.cos], x),
        handed_on(jnp.sin),
        lambda x: lax.while_loop(  # its condition reads what it hands on
            lambda c: c[0] < jnp.sum(c[1]),
            lambda c: (c[0] + 1.0, jnp.where(c[0] > 0, c[1], c[1])),
            (0.0, x),
        ),
        lambda x: lax.fori_loop(0, 2, lambda _, c: (c[1], c[0]), (x, x + 1.0)),
    ],
)
def test_what_changes_stays(function: Callable[..., Any]) -> None:
    closed = jax.make_jaxpr(function)(X)
    assert without_known_control(closed.jaxpr) is closed.jaxpr


def test_branches_taken_twice_have_names_of_their_own() -> None:
    branches = [jnp.sin, lambda y: jnp.cos(y) * y]

    def run(x: jax.Array) -> Any:
        return lax.scan(
            lambda c, _: (lax.switch(1, branches, lax.switch(1, branches, c)), None), x, None, 2
        )[0]

    closed = settled(run, X)
    assert "cond" not in str(closed)
    np.testing.assert_allclose(jaxpr_as_fun(closed)(X)[0], run(X), rtol=1e-6)


def test_what_a_loop_of_one_run_starts_from_and_does_not_read_is_dead() -> None:
    def last(start: jax.Array, rows: jax.Array) -> Any:
        return lax.scan(lambda _, r: (held(r), None), start, rows)[0]

    closed = settled(lambda x: last(jnp.sin(x), x[None]), X)
    assert "sin" not in names(closed)
    np.testing.assert_array_equal(jaxpr_as_fun(closed)(X)[0], X)
    summed = settled(lambda x: lax.scan(lambda c, r: (c + r, None), jnp.sin(x), x[None])[0], X)
    assert "sin" in names(summed)
    thrice = jax.make_jaxpr(lambda x: last(jnp.sin(x), jnp.stack([x] * 3)))(X)
    assert without_known_control(thrice.jaxpr) is thrice.jaxpr
