"""Gradients of pools without windows, written as the zeros that XLA makes of them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Jaxpr, JaxprEqn

from autoshard.frontend.spliced import spliced, with_replaced


def without_empty_windows(jaxpr: Jaxpr) -> Jaxpr:
    """The same, zeros for what a `select_and_scatter` makes of no elements; itself without."""
    return with_replaced(jaxpr, _zeros)


def _zeros(body: Jaxpr) -> dict[int, list[JaxprEqn]]:
    """By the place of such an equation, the zeros in its place."""

    def made(_: jax.Array, operand: jax.Array) -> Any:
        return jnp.zeros(operand.shape, operand.dtype)

    return {
        place: spliced(made, eqn, eqn.invars, eqn.outvars)
        for place, eqn in enumerate(body.eqns)
        if eqn.primitive.name == "select_and_scatter_add" and not eqn.invars[0].aval.size
    }
