"""Costs are whole picoseconds."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from solvers import FORBIDDEN

PICOSECONDS = 1e12


def picoseconds(seconds: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Seconds as costs of the same shape; `FORBIDDEN` where they are not finite."""
    scaled = np.where(np.isfinite(seconds), seconds * PICOSECONDS, float(FORBIDDEN))
    return np.minimum(np.rint(scaled), float(FORBIDDEN)).astype(np.int64)
