"""How well prices fit the times they were fitted to, and which fits are refused."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cost_models.errors import CostModelError
from cost_models.measured import CollectiveSample, OpSample, Residuals
from cost_models.relative_fits import FloatArray

LEAST_SAMPLES = 3
MOST_MEDIAN_ERROR = 0.5
"""A fit that misses half of its samples by more than this share says nothing."""

_LEAST_GAIN = 0.1
_NOISY_SPREAD = 0.15


def residuals_of(prices: FloatArray, seconds: FloatArray) -> Residuals:
    """Compares prices with measured times, each above 0.

    Args:
        prices: float64[num_samples].
        seconds: float64[num_samples].
    """
    errors = np.abs(prices - seconds) / seconds
    logs = np.log(seconds)
    missed = float(((np.log(np.maximum(prices, 1e-15)) - logs) ** 2).sum())
    total = float(((logs - logs.mean()) ** 2).sum())
    explained = 1.0 - missed / total if total > 0 else float(missed == 0)
    return Residuals(
        median_error=float(np.median(errors)),
        max_error=float(errors.max()),
        r_squared=max(explained, -1e9),
    )


def check_samples(samples: Sequence[CollectiveSample | OpSample], where: str) -> None:
    """Raises a CostModelError where there are too few samples to fit anything to."""
    if len(samples) < LEAST_SAMPLES:
        raise CostModelError(
            f"{len(samples)} samples; expected at least {LEAST_SAMPLES}",
            where=where,
            fix="give more seconds",
        )


def checked_residuals(
    prices: FloatArray, samples: Sequence[CollectiveSample | OpSample], where: str
) -> Residuals:
    """Residuals of prices that tell something of their samples.

    Args:
        prices: float64[num_samples].
        samples: What the prices were fitted to.
        where: What they are prices of, for errors.

    Raises:
        CostModelError: Half of the prices are far off, or some are and one price for all sizes
            would be about as near.
    """
    seconds = np.array([sample.seconds for sample in samples])
    residuals = residuals_of(prices, seconds)
    if residuals.median_error > MOST_MEDIAN_ERROR:
        off = f"half of the prices are off by more than {residuals.median_error:.0%}"
    elif residuals.max_error > MOST_MEDIAN_ERROR and _gain(prices, seconds) < _LEAST_GAIN:
        off = f"prices are off by up to {residuals.max_error:.0%}, no better than one for all sizes"
    else:
        return residuals
    spread = float(np.median([sample.spread for sample in samples]))
    if spread > _NOISY_SPREAD:
        raise CostModelError(
            f"too noisy: {off}, and repeats differ by {spread:.0%}",
            where=where,
            fix="end other programs, or give more seconds",
        )
    raise CostModelError(
        f"the times do not follow the formula: {off}, though repeats differ by {spread:.0%} only",
        where=where,
        fix="measure again; if it stays, do not rely on prices of this kind",
    )


def _gain(prices: FloatArray, seconds: FloatArray) -> float:
    """How much nearer the prices are than one price for all, by distances of logarithms."""
    logs = np.log(seconds)
    alone = float(np.abs(logs - np.median(logs)).sum())
    together = float(np.abs(np.log(np.maximum(prices, 1e-15)) - logs).sum())
    return 1.0 - together / alone if alone > 0 else 0.0
