"""Robust fits of prices to measured times, by relative error: a microsecond counts like a second.

A few samples may be far off (another program ran meanwhile); they lose weight, so that the fit
goes through the others.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar, nnls

FloatArray = NDArray[np.float64]

_ROUNDS = 30
_SMALL_ERROR = 0.1
"""Relative errors below it are noise and count squared, larger ones by their size alone."""


def fit_nonnegative(columns: FloatArray, seconds: FloatArray) -> FloatArray:
    """Coefficients from 0 up whose mix of columns is nearest to the times, by relative error.

    Least squares with weights that are renewed until they stand, lower for larger errors.

    Args:
        columns: float64[num_samples, num_columns], each from 0 up.
        seconds: float64[num_samples], each above 0.

    Returns:
        float64[num_columns].

    Source: Lawson and Hanson (1974), non-negative least squares; Huber (1964), weights.
    """
    scaled = columns / seconds[:, None]
    units = np.linalg.norm(scaled, axis=0)
    units[units == 0] = 1.0
    scaled = scaled / units
    weights = np.ones(len(seconds))
    found = np.zeros(columns.shape[1])
    for _ in range(_ROUNDS):
        found, _ = nnls(scaled * weights[:, None], weights)
        errors = np.abs(scaled @ found - 1.0)
        renewed = 1.0 / np.sqrt(np.maximum(errors, _SMALL_ERROR))
        if np.allclose(renewed, weights, rtol=1e-6):
            break
        weights = renewed
    return np.asarray(found / units)


def fit_rate(
    amounts: FloatArray,
    other_seconds: FloatArray,
    fixed_seconds: float,
    seconds: FloatArray,
    *,
    low: float,
    high: float,
) -> float:
    """The rate for which `fixed + max(amounts / rate, other)` is nearest to the times.

    Nearest by the sum of the absolute differences of logarithms.

    Args:
        amounts: float64[num_samples], what is done at the rate sought.
        other_seconds: float64[num_samples], what goes on meanwhile.
        fixed_seconds: Comes on top.
        seconds: float64[num_samples], measured, each above 0.
        low: The least rate looked at.
        high: The greatest.
    """
    logs = np.log(seconds)

    def distance(log_rate: float) -> float:
        prices = fixed_seconds + np.maximum(amounts / np.exp(log_rate), other_seconds)
        return float(np.abs(np.log(np.maximum(prices, 1e-15)) - logs).sum())

    grid = np.linspace(np.log(low), np.log(high), 257)
    distances = [distance(log_rate) for log_rate in grid]
    best = int(np.argmin(distances))
    left, right = grid[max(0, best - 1)], grid[min(len(grid) - 1, best + 1)]
    found = minimize_scalar(
        distance, bounds=(left, right), method="bounded", options={"xatol": 1e-7}
    )
    log_rate = found.x if found.fun <= distances[best] else grid[best]
    return float(np.exp(log_rate))
