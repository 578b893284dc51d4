"""Costs are whole picoseconds."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from solvers import FORBIDDEN
from solvers.problem import LARGEST_ALLOWED_COST

PICOSECONDS = 1e12
_LONGEST = LARGEST_ALLOWED_COST // 10
"""The highest cost of a finite time, 1,000 s: sums of some of them stay allowed."""


def picoseconds(seconds: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Seconds as costs of the same shape; `FORBIDDEN` where they are not finite."""
    costs = np.minimum(np.rint(seconds * PICOSECONDS), float(_LONGEST))
    return np.where(np.isfinite(seconds), costs, float(FORBIDDEN)).astype(np.int64)
