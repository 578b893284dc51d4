"""Names that tell the equations of a program, and change nothing else of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun

from autoshard.frontend.jaxpr_paths import bodies
from autoshard.frontend.tagging import with_equation_names
from autoshard.refine.named_ops import equation_of

ROWS = jax.ShapeDtypeStruct((8, 8), jnp.float32)


def gated(x: jax.Array) -> Any:
    return jnp.tanh(x @ x) * jax.nn.relu(x)


GATED = jax.jit(gated)


def program(x: jax.Array) -> jax.Array:
    """One function three times: twice beside one another, and in a body."""

    def layer(carry: jax.Array, _: None) -> tuple[jax.Array, None]:
        both = jax.lax.cond(carry[0, 0] > 0, GATED, jnp.sin, carry)
        return both, None

    x = GATED(GATED(x) + 1)
    x, _ = jax.lax.scan(layer, x, None, length=3)
    out: jax.Array = jax.checkpoint(GATED)(x)
    return out


def traced() -> ClosedJaxpr:
    return jax.make_jaxpr(program)(ROWS)


def lowered(closed: ClosedJaxpr) -> jax.stages.Lowered:
    return jax.jit(jaxpr_as_fun(closed)).lower(ROWS)


def primitives(jaxpr: Jaxpr, prefix: str = "") -> Iterator[tuple[str, str]]:
    for index, eqn in enumerate(jaxpr.eqns):
        path = f"{prefix}{index}"
        yield path, eqn.primitive.name
        for key, body in bodies(eqn):
            yield from primitives(body, f"{path}.{key}/")


def test_names_leave_the_program_as_it_is() -> None:
    """The compiler sees the functions that several equations call once, as without names."""
    plain, named = (lowered(one).as_text() for one in (traced(), with_equation_names(traced())))
    assert named == plain
    assert plain.count("call @gated") > plain.count("func.func private @gated") >= 1


def test_compiled_ops_name_their_equation_in_every_call_of_a_function() -> None:
    closed = traced()
    known = dict(primitives(closed.jaxpr))
    text = lowered(with_equation_names(closed)).compile().as_text()
    found = set()
    for name in re.findall(r'op_name="([^"]*)"', text):
        if name.rpartition("/")[2] in ("tanh", "dot_general", "sin"):
            assert known[equation_of(name)] == name.rpartition("/")[2]
            found.add(equation_of(name))
    assert {path for path, primitive in known.items() if primitive == "tanh"} <= found
