"""Slices of a program kept apart from those that cut its tensors, and their starts within these.

A device writes what its shard has of an update; where that starts past the end, no shard has any,
as the partitioner drops the clamp (jaxlib 0.10.2). Starts are clamped before it.

XLA's algebraic simplifier makes one dynamic slice of two and drops the clamp of the inner start
(jaxlib 0.10.2). One of the two is a device's piece of a tensor, so every device then clamps for
itself. Three kinds of slices are written so that this does no harm:

* A dynamic slice of the program that starts past the end starts as late as fits. Its starts are
  clamped before it.
* A scatter of one row becomes an update that first reads the row of its shard, wherever on the way
  to its operand that shard was cut. A barrier before the operand keeps the two slices apart.
* A tensor updated by its own first rows, gathered, becomes these rows and zeros, wherever they are,
  if their shards are as large as those of the tensor. A barrier before it keeps the two apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from autoshard.frontend.jaxpr_paths import bodies, rewrite_bodies

_SLICE = "dynamic_slice"
_UPDATE = "dynamic_update_slice"
_SCATTER = "scatter"


def with_sound_slices(closed: ClosedJaxpr, num_devices: int) -> ClosedJaxpr:
    """A copy of a program in which no slice is merged with one that cuts a tensor.

    Itself where there is none. A slice of one element, or of all of them, cannot be cut along that
    dimension, and keeps its start. A scatter of more rows than devices has several on each, and
    keeps its operand.
    """
    jaxpr = _sound(closed.jaxpr, num_devices)
    return closed if jaxpr is closed.jaxpr else ClosedJaxpr(jaxpr, closed.consts)


def _sound(jaxpr: Jaxpr, num_devices: int) -> Jaxpr:
    eqns: list[JaxprEqn] = []
    is_changed = False
    for eqn in jaxpr.eqns:
        before = _before(eqn, num_devices)
        eqns += before.values()
        operands = [
            before[place].outvars[0] if place in before else atom
            for place, atom in enumerate(eqn.invars)
        ]
        inside = {key: _sound(body, num_devices) for key, body in bodies(eqn)}
        if before or any(inside[key] is not body for key, body in bodies(eqn)):
            params = rewrite_bodies(eqn, _taken_from(inside))
            eqns.append(eqn.replace(invars=operands, params=params or eqn.params))
            is_changed = True
        else:
            eqns.append(eqn)
    return jaxpr.replace(eqns=eqns) if is_changed else jaxpr


def _taken_from(bodies_by_key: Mapping[str, Jaxpr]) -> Callable[[str, Jaxpr], Jaxpr]:
    return lambda key, _: bodies_by_key[key]


def _before(eqn: JaxprEqn, num_devices: int) -> dict[int, JaxprEqn]:
    """By operand of an equation, the equation that makes it anew."""
    name = eqn.primitive.name
    if name == _SLICE:
        return _clamps(eqn, 1, eqn.params["slice_sizes"], least=2)
    if name == _UPDATE:
        whole, update = (atom.aval.shape for atom in eqn.invars[:2])
        barrier = _barrier(eqn) if has_large_update(whole, update, num_devices) else {}
        return barrier | _clamps(eqn, 2, update, least=1)
    if name.replace("-", "_").partition("_")[0] == _SCATTER:
        return _barrier(eqn) if prod(eqn.invars[1].aval.shape[:-1]) <= num_devices else {}
    return {}


def has_large_update(whole: Sequence[int], update: Sequence[int], num_devices: int) -> bool:
    """True where shards of an update of rows may be as large as those of the tensor."""
    return any(
        1 < taken < size < taken + num_devices for size, taken in zip(whole, update, strict=True)
    )


def _clamps(eqn: JaxprEqn, first: int, part: Sequence[int], *, least: int) -> dict[int, JaxprEqn]:
    """An equation that clamps the start along each dimension that may be cut.

    Args:
        eqn: That slices or updates its first operand.
        first: The operand that is the start along the first dimension. One that varies over manual
            axes is in a manual region: what is sliced there is a device's own.
        part: Shape of the slice or update.
        least: Size along a dimension that it has at least where that may be cut.
    """
    sizes = zip(eqn.invars[0].aval.shape, part, strict=True)
    return {
        place: _clamp(eqn.invars[place], size - taken, eqn)
        for place, (size, taken) in enumerate(sizes, start=first)
        if least <= taken < size
        and not eqn.invars[place].aval.manual_axis_type.varying
        and not _is_within(eqn.invars[place], size - taken)
    }


def _is_within(start: Var | Literal, last: int) -> bool:
    return isinstance(start, Literal) and 0 <= int(start.val) <= last


def _clamp(start: Var | Literal, last: int, like: JaxprEqn) -> JaxprEqn:
    """`clamp(0, start, last)`, at the source line of another equation."""
    dtype = start.aval.dtype
    traced = jax.make_jaxpr(
        lambda at: jax.lax.clamp(np.zeros((), dtype), at, np.asarray(last, dtype))
    )(jax.ShapeDtypeStruct((), dtype))
    (template,) = traced.jaxpr.eqns
    low, _, high = template.invars
    return _copied(template, [low, start, high], start, like)


def _barrier(eqn: JaxprEqn) -> dict[int, JaxprEqn]:
    """A barrier before the first operand."""
    operand = eqn.invars[0]
    if isinstance(operand, Literal) or not operand.aval.shape:
        return {}
    of_type = jax.ShapeDtypeStruct(operand.aval.shape, operand.aval.dtype)
    (template,) = jax.make_jaxpr(jax.lax.optimization_barrier)(of_type).jaxpr.eqns
    return {0: _copied(template, [operand], operand, eqn)}


def _copied(
    template: JaxprEqn, operands: list[Var | Literal], result: Var | Literal, like: JaxprEqn
) -> JaxprEqn:
    """A template on other operands, with a result of another's type, at another's source line."""
    return template.replace(
        invars=operands,
        outvars=[Var(result.aval)],
        source_info=like.source_info,
        ctx=like.ctx,
    )
