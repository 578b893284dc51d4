"""Small linear programs, solved by HiGHS through SciPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


def solve_linear_program(objective: FloatArray, **rows_and_bounds: Any) -> FloatArray | None:
    """Minimises; SciPy is imported with the first one, since it takes as long as all else does.

    Args:
        objective: float64[columns].
        rows_and_bounds: `A_ub`, `b_ub`, `A_eq`, `b_eq` and `bounds` of `scipy.optimize.linprog`.

    Returns:
        float64[columns]; None where no optimum was found.
    """
    from scipy.optimize import linprog

    solved = linprog(objective, method="highs", **rows_and_bounds)
    if solved.status != 0 or solved.x is None:
        return None
    return np.asarray(solved.x, dtype=np.float64)
