"""Results that do not depend on operands, written as the constants that XLA makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Jaxpr, JaxprEqn, Var
from jax.lax import GatherScatterMode

from autoshard.frontend.jaxpr_paths import CALLS
from autoshard.frontend.known_fills import fills
from autoshard.frontend.known_numbers import known_number
from autoshard.frontend.spliced import spliced, with_replaced

_OF_EQUALS = {"eq": 1, "ge": 1, "le": 1, "ne": 0, "lt": 0, "gt": 0, "sub": 0, "xor": 0}
"""By operation, what it makes of an integer and itself."""

_SENT = CALLS | {"concatenate", "pad", "rev", "slice"}
"""Equations that may send the elements that they move."""


def without_known_results(jaxpr: Jaxpr) -> Jaxpr:
    """The same, constants for pools without windows and rows that are not there; itself without.

    These are the zeros of a `select_and_scatter` of no elements, and what a gather at an index out
    of bounds is filled with, where the program says the index: what is scattered there is dropped.
    What compares integers with themselves, or takes them from themselves, is known too, where the
    largest of one lies, and what is moved of a value that one scalar fills.
    """
    return with_replaced(jaxpr, _constants)


def _constants(body: Jaxpr) -> dict[int, list[JaxprEqn]]:
    """By the place of such an equation, the constant in its place."""
    numbers: dict[Var, int] = {}
    filled = fills(body)
    found = {}
    for place, eqn in enumerate(body.eqns):
        name = eqn.primitive.name
        if name == "broadcast_in_dim":
            if (number := known_number(eqn.invars[0], {})) is not None:
                numbers[eqn.outvars[0]] = number
        elif name == "select_and_scatter_add" and not eqn.invars[0].aval.size:
            found[place] = _filled(eqn, 0)
        elif name in _OF_EQUALS and _are_equal(eqn):
            found[place] = _filled(eqn, _OF_EQUALS[name])
        elif name in ("argmax", "argmin") and _is_of_one(eqn):
            found[place] = _filled(eqn, 0)
        elif name == "gather" and _is_outside(eqn, numbers):
            found[place] = _filled(eqn, _filling(eqn))
        elif name.startswith("scatter") and _is_dropped(eqn, numbers):
            found[place] = spliced(jnp.copy, eqn, eqn.invars[:1], eqn.outvars)
        elif name in _SENT and not filled.keys().isdisjoint(eqn.outvars):
            found[place] = _filled(eqn, filled[eqn.outvars[0]])
    return found


def _filled(eqn: JaxprEqn, value: Any) -> list[JaxprEqn]:
    made = eqn.outvars[0].aval

    def fill(*_: jax.Array) -> Any:
        filled = jnp.full(made.shape, value, made.dtype)
        return filled if made.shape else jnp.copy(filled)  # a scalar alone is made by no equation

    return spliced(fill, eqn, eqn.invars, eqn.outvars)


def _are_equal(eqn: JaxprEqn) -> bool:
    """True for two operands that are one variable of integers."""
    one, other = eqn.invars
    dtype = one.aval.dtype
    return one is other and (dtype == jnp.bool_ or jnp.issubdtype(dtype, jnp.integer))


def _is_of_one(eqn: JaxprEqn) -> bool:
    """True where each row that it looks through has one element."""
    shape = eqn.invars[0].aval.shape
    return all(shape[axis] == 1 for axis in eqn.params["axes"])


def _is_outside(eqn: JaxprEqn, numbers: Mapping[Var, int]) -> bool:
    """True where all that a gather reads lies out of bounds, and is filled."""
    operand, index = eqn.invars
    number = known_number(index, numbers)
    is_filled = eqn.params["mode"] == GatherScatterMode.FILL_OR_DROP
    is_key = jnp.issubdtype(operand.aval.dtype, jax.dtypes.extended)
    if number is None or not is_filled or is_key:
        return False
    sizes, shape = eqn.params["slice_sizes"], operand.aval.shape
    dims = eqn.params["dimension_numbers"].start_index_map
    return any(number < 0 or number + sizes[dim] > shape[dim] for dim in dims)


def _is_dropped(eqn: JaxprEqn, numbers: Mapping[Var, int]) -> bool:
    """True where all that a scatter writes lies out of bounds."""
    operand, index, _ = eqn.invars
    number = known_number(index, numbers)
    if number is None or eqn.params["mode"] != GatherScatterMode.FILL_OR_DROP:
        return False
    dims = eqn.params["dimension_numbers"].scatter_dims_to_operand_dims
    return any(not 0 <= number < operand.aval.shape[dim] for dim in dims)


def _filling(eqn: JaxprEqn) -> Any:
    """The value that a gather puts for what is out of bounds; JAX's own choice if none is said."""
    said, dtype = eqn.params["fill_value"], eqn.outvars[0].aval.dtype
    if said is not None:
        return said
    if jnp.issubdtype(dtype, jnp.inexact):
        return jnp.nan
    if dtype == jnp.bool_:
        return True
    limits = jnp.iinfo(dtype)
    return limits.min if jnp.issubdtype(dtype, jnp.signedinteger) else limits.max
