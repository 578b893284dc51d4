"""Matmuls that sum a single term, written as the products that XLA makes of them.

XLA does so before Shardy propagates, which takes other ways through a matmul than through
element-wise ops: constraints found for the one do not hold the other.
"""

from __future__ import annotations

from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Jaxpr, JaxprEqn

from autoshard.frontend.rewritable_equations import is_free_matmul
from autoshard.frontend.spliced import spliced, with_replaced


def without_outer_products(jaxpr: Jaxpr) -> Jaxpr:
    """The same, `dot_general` over one term as a product of broadcast operands; itself if none is.

    One whose result has a sharding in its type stays, and so do those of manual regions, through
    which nothing propagates.
    """
    return with_replaced(jaxpr, _products)


def _products(body: Jaxpr) -> dict[int, list[JaxprEqn]]:
    """By the place of a matmul over one term, the equations in its place."""
    return {place: _product(eqn) for place, eqn in enumerate(body.eqns) if _is_outer(eqn)}


def _is_outer(eqn: JaxprEqn) -> bool:
    if not is_free_matmul(eqn):
        return False
    (summed, _), _ = eqn.params["dimension_numbers"]
    return bool(prod(eqn.invars[0].aval.shape[dim] for dim in summed) == 1)


def _product(eqn: JaxprEqn) -> list[JaxprEqn]:
    """The equations in the place of one."""
    (summed, batch) = eqn.params["dimension_numbers"]
    (result,) = eqn.outvars
    shape, dtype = result.aval.shape, result.aval.dtype

    def spread(operand: Any, side: int, first_free: int) -> Any:
        """Batch dimensions first, free ones from a given position on, all others broadcast."""
        free = [d for d in range(operand.ndim) if d not in summed[side] and d not in batch[side]]
        order = (*batch[side], *free)
        kept = jnp.transpose(operand, (*order, *summed[side])).reshape(
            [operand.shape[d] for d in order]
        )
        places = (*range(len(batch[side])), *range(first_free, first_free + len(free)))
        return jax.lax.broadcast_in_dim(kept.astype(dtype), shape, places)

    def product(left: Any, right: Any) -> Any:
        kept_left = left.ndim - len(summed[0])
        return jax.lax.mul(spread(left, 0, len(batch[0])), spread(right, 1, kept_left))

    return spliced(product, eqn, eqn.invars, eqn.outvars)
