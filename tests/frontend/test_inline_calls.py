"""Calls that only group equations are inlined, and what they say of these goes on to them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from autoshard.frontend.inline_calls import inline_calls
from autoshard.frontend.source_lines import SourceLines


def spread(x: jax.Array) -> Any:
    return jnp.std(jnp.sort(x))


def test_ops_of_a_library_function_have_the_line_that_calls_it() -> None:
    closed = jax.make_jaxpr(spread)(jnp.ones(4))
    lines = SourceLines()
    flat, _ = inline_calls(closed.jaxpr)
    assert "sort" in [one.eqn.primitive.name for one in flat]
    assert {lines.line(one.eqn).endswith("(spread)") for one in flat} == {True}


def test_calls_that_are_told_to_stay_do() -> None:
    closed = jax.make_jaxpr(spread)(jnp.ones(4))
    kept, _ = inline_calls(closed.jaxpr, lambda _: None)
    assert [one.eqn.primitive for one in kept] == [eqn.primitive for eqn in closed.jaxpr.eqns]
