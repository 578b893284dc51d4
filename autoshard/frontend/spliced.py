"""Equations of a function in the place of an equation of a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import JaxprEqn, Literal, Var

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
