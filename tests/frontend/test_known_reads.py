"""Reads of nothing become constants: the numbers stay, and nothing is sent for them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

import autoshard
from autoshard.frontend.known_reads import without_empty_reads


def row(index: int, **mode: Any) -> Any:
    return lambda x: x.at[index].get(mode="fill", **mode)


def names(closed: ClosedJaxpr) -> list[str]:
    return [eqn.primitive.name for eqn in closed.jaxpr.eqns]


def rewritten(function: Any, x: Any) -> ClosedJaxpr:
    closed = jax.make_jaxpr(function)(x)
    return closed.replace(jaxpr=without_empty_reads(closed.jaxpr))


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
    assert without_empty_reads(jaxpr) is jaxpr


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
