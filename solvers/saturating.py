"""Costs that saturate at `FORBIDDEN`: the arithmetic every reduction and bound uses.

Tables inside the package hold allowed costs well below `FORBIDDEN` and exactly `FORBIDDEN`
elsewhere. A sum of two tables is brought back to that form, so nothing overflows 64 bits.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from solvers.problem import FORBIDDEN, LARGEST_ALLOWED_COST, IntArray

FORBIDDEN_FROM = FORBIDDEN // 2
"""A partial sum of this much or more holds a forbidden cost (allowed sums stay below it)."""


def saturate(costs: IntArray) -> IntArray:
    """Returns the table with everything from `FORBIDDEN_FROM` up set to `FORBIDDEN`."""
    high = costs >= FORBIDDEN_FROM
    if not high.any():
        return costs
    return np.where(high, FORBIDDEN, costs)


def saturate_in_place(costs: IntArray) -> IntArray:
    """Like `saturate`, writing into a table the caller owns."""
    costs[costs >= FORBIDDEN_FROM] = FORBIDDEN
    return costs


def is_allowed(costs: IntArray) -> npt.NDArray[np.bool_]:
    """Returns bool[...]: where a saturated table allows its entry."""
    return costs < FORBIDDEN_FROM


def as_valid(costs: IntArray) -> IntArray:
    """Returns the saturated table with allowed sums cut to what a `Problem` may hold."""
    if int(costs.max(initial=0)) < LARGEST_ALLOWED_COST:
        return costs
    return np.where(costs >= FORBIDDEN_FROM, FORBIDDEN, np.minimum(costs, LARGEST_ALLOWED_COST - 1))


def add(first: IntArray, second: IntArray) -> IntArray:
    """Returns the saturated sum of two saturated tables (broadcast)."""
    return saturate_in_place(first + second)
