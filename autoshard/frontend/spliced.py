"""Equations of functions in the place of equations of a program."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var

from autoshard.frontend.jaxpr_paths import Body, rewrite_bodies
from autoshard.frontend.meshes import mesh_context


def spliced(
    function: Callable[..., Any], like: JaxprEqn, invars: Sequence[Any], outvars: Sequence[Var]
) -> list[JaxprEqn]:
    """The equations of a function, from the source and in the context of one that they replace.

    Args:
        function: Of as many arrays as `invars`, in the operations of JAX.
        like: The equation that they replace.
        invars: What the function is applied to.
        outvars: What its results are called.
    """
    with mesh_context(None):
        traced = jax.make_jaxpr(function)(
            *(jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype) for atom in invars)
        ).jaxpr
    known: dict[Var, Any] = dict(zip(traced.invars, invars, strict=True))
    known.update(zip(traced.outvars, outvars, strict=True))
    return [
        made.replace(
            invars=[a if isinstance(a, Literal) else known.setdefault(a, a) for a in made.invars],
            outvars=[known.setdefault(var, var) for var in made.outvars],
            source_info=like.source_info,
            ctx=like.ctx,
        )
        for made in traced.eqns
    ]


def with_replaced(
    jaxpr: Jaxpr,
    replaced: Callable[[Jaxpr], Mapping[int, Sequence[JaxprEqn]]],
    once: dict[tuple[str, int], Body] | None = None,
) -> Jaxpr:
    """The same with other equations in the place of some, in bodies too; itself if in none.

    Bodies of manual regions stay: nothing propagates through them.

    Args:
        jaxpr: The program.
        replaced: Called with each body; the equations that stand in the place of one, by place.
        once: Bodies rewritten so far.
    """
    known = {} if once is None else once
    found = replaced(jaxpr)
    eqns: list[JaxprEqn] = []
    for place, eqn in enumerate(jaxpr.eqns):
        if place in found:
            eqns += found[place]
            continue
        params = None
        if eqn.primitive.name != "shard_map":
            params = rewrite_bodies(
                eqn, lambda _, body: with_replaced(body, replaced, known), known
            )
        is_same = params is None or params == eqn.params
        eqns.append(eqn if is_same else eqn.replace(params=params))
    same = len(eqns) == len(jaxpr.eqns) and all(map(operator.is_, eqns, jaxpr.eqns))
    return jaxpr if same else jaxpr.replace(eqns=eqns)
