"""Values that one scalar of the program fills, however it is moved.

XLA folds what moves such a value into another fill (openxla/xla, `algebraic_simplifier.cc`), but
behind its partitioner: a roll of zeros is sent, or computed whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from jax.dtypes import float0
from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var

from autoshard.frontend.jaxpr_paths import CALLS, bodies

_KEEP = frozenset("broadcast_in_dim copy reshape rev slice squeeze transpose".split())
_MIX = frozenset({"concatenate", "pad"})


def fills(jaxpr: Jaxpr, given: Mapping[Var, Any] | None = None) -> dict[Var, Any]:
    """The scalar that fills a value, by variable.

    Args:
        jaxpr: A body.
        given: Of its arguments, those of a call with filled operands.
    """
    found = dict(given or {})
    for eqn in jaxpr.eqns:
        number = _filling(eqn, found)
        if number is not None:
            found.update(dict.fromkeys(eqn.outvars, number))
    return found


def _filling(eqn: JaxprEqn, known: Mapping[Var, Any]) -> Any:
    """The scalar that fills the one result of an equation; None where that is not known."""
    given = (_scalar(atom, known) for atom in eqn.invars)
    read = [number for number in given if number is not None]
    if len(eqn.outvars) != 1 or not read or len(read) < len(eqn.invars):
        return None
    name = eqn.primitive.name
    if name in _KEEP:
        return read[0]
    if name in _MIX and len({(number.dtype, number.tobytes()) for number in read}) == 1:
        return read[0]
    inside = [body for _, body in bodies(eqn)] if name in CALLS else []
    if len(inside) != 1 or len(inside[0].invars) != len(read):
        return None
    (body,) = inside
    return _scalar(body.outvars[0], fills(body, dict(zip(body.invars, read, strict=True))))


def _scalar(atom: Any, known: Mapping[Var, Any]) -> np.ndarray[Any, Any] | None:
    if not isinstance(atom, Literal):
        return known.get(atom)
    shape, dtype = atom.aval.shape, atom.aval.dtype
    if shape or not isinstance(dtype, np.dtype) or dtype == float0:
        return None
    return np.asarray(atom.val, dtype)
