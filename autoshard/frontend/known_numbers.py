"""Integers that a program says, or makes of such."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from jax.extend.core import JaxprEqn, Literal, Var


def known_number(atom: Any, numbers: Mapping[Var, int]) -> int | None:
    """An integer scalar, where the program says which."""
    if not isinstance(atom, Literal):
        return numbers.get(atom)
    value = np.asarray(atom.val)
    return int(value) if value.shape == () and value.dtype.kind in "iub" else None


def number_made(eqn: JaxprEqn, numbers: Mapping[Var, int]) -> int | None:
    """The integer that an equation makes of others, as `lax.switch` does of its index."""
    if eqn.primitive.name not in ("clamp", "convert_element_type"):
        return None
    made = eqn.outvars[0].aval
    found = (known_number(atom, numbers) for atom in eqn.invars)
    given = [number for number in found if number is not None]
    if made.shape or made.dtype.kind not in "iub" or len(given) < len(eqn.invars):
        return None
    if eqn.primitive.name == "clamp":
        low, number, high = given
        return min(max(number, low), high)
    return int(np.asarray(given[0]).astype(made.dtype))
