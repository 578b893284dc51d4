"""Starts of dynamic slices, clamped by the program and not only by what the op means.

A dynamic slice that starts past the end starts as late as fits. XLA's algebraic simplifier loses
that where a device takes its piece of the slice: it makes one slice of the two and clamps the sum
of their starts, so that every device clamps for itself (jaxlib 0.10.2). Clamped before, the starts
are right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from autoshard.frontend.jaxpr_paths import bodies, rewrite_bodies

_SLICE = "dynamic_slice"


def with_clamped_starts(closed: ClosedJaxpr) -> ClosedJaxpr:
    """A copy of a program in which no dynamic slice that can be cut starts past its end.

    Itself where there is none. A slice of one element, or of all of them, cannot be cut along that
    dimension, and keeps its start.
    """
    jaxpr = _clamped(closed.jaxpr)
    return closed if jaxpr is closed.jaxpr else ClosedJaxpr(jaxpr, closed.consts)


def _clamped(jaxpr: Jaxpr) -> Jaxpr:
    eqns: list[JaxprEqn] = []
    is_changed = False
    for eqn in jaxpr.eqns:
        starts = _clamps(eqn) if eqn.primitive.name == _SLICE else {}
        eqns += starts.values()
        operands = [
            starts[place].outvars[0] if place in starts else atom
            for place, atom in enumerate(eqn.invars)
        ]
        inside = {key: _clamped(body) for key, body in bodies(eqn)}
        if starts or any(inside[key] is not body for key, body in bodies(eqn)):
            params = rewrite_bodies(eqn, _taken_from(inside))
            eqns.append(eqn.replace(invars=operands, params=params or eqn.params))
            is_changed = True
        else:
            eqns.append(eqn)
    return jaxpr.replace(eqns=eqns) if is_changed else jaxpr


def _taken_from(bodies_by_key: Mapping[str, Jaxpr]) -> Callable[[str, Jaxpr], Jaxpr]:
    return lambda key, _: bodies_by_key[key]


def _clamps(eqn: JaxprEqn) -> dict[int, JaxprEqn]:
    """An equation that clamps the start along each dimension in which a slice can be cut."""
    whole, slices = eqn.invars[0].aval.shape, eqn.params["slice_sizes"]
    found = {}
    for place, (size, taken) in enumerate(zip(whole, slices, strict=True), start=1):
        start = eqn.invars[place]
        if 1 < taken < size and not isinstance(start, Literal):
            found[place] = _clamp(start, size - taken, eqn)
    return found


def _clamp(start: Var, last: int, like: JaxprEqn) -> JaxprEqn:
    """`clamp(0, start, last)`, at the source line of another equation."""
    dtype = start.aval.dtype
    traced = jax.make_jaxpr(
        lambda at: jax.lax.clamp(np.zeros((), dtype), at, np.asarray(last, dtype))
    )(jax.ShapeDtypeStruct((), dtype))
    (template,) = traced.jaxpr.eqns
    low, _, high = template.invars
    return template.replace(
        invars=[low, start, high],
        outvars=[Var(start.aval)],
        source_info=like.source_info,
        ctx=like.ctx,
    )
