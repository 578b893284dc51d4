"""How prices follow the answers: dearer where memory runs out, cheaper where it does not."""

from __future__ import annotations

import numpy as np

from solvers.kernels import FloatArray
from solvers.problem import IntArray
from solvers.scalable.priced_ascent import PricedAscent
from solvers.scalable.profile import use_by_row

FIRST_STEP = 3.0
"""Prices change by at most this much times the relative excess a sweep, at first."""

FIRST_SHARE = 0.1
"""All first prices times the limit, as a share of the expected cost."""

_DECAY_SWEEPS = 30
_UNSMOOTHED_SWEEPS = 200
_SMOOTHING = 0.2
_PATIENCE = 40
_SHRINK = 0.7
_SMALLEST_STEP = 1e-6


class PriceRule:
    """Exponentiated subgradient ascent on the bound, with a step that shrinks where it overshoots.

    Formula: ``p[r] <- p[r] * exp(step * (use[r] / limit - 1))`` with the use averaged over the
    answers read off; after `_PATIENCE` sweeps without a higher bound the best prices come back and
    the step shrinks.

    Args:
        ascent: Whose prices are set.
        expected_cost: About what answers cost.
        prices: To start from; equal small ones unless given.
        first_step: See `FIRST_STEP`.

    Attributes:
        best_bound: Highest bound so far.
        best_prices: Those that gave it.
        num_sweeps: Made so far.
    """

    def __init__(
        self,
        ascent: PricedAscent,
        expected_cost: float,
        *,
        prices: FloatArray | None = None,
        first_step: float = FIRST_STEP,
    ) -> None:
        self._ascent = ascent
        memory = ascent.layout.memory
        self._is_priced = memory.num_rows > 0 and memory.limit < 2**62
        self._limit = max(1, memory.limit)
        self._step = first_step
        self._since = 0
        self._use: FloatArray | None = None
        self.num_sweeps = 0
        self.best_bound: int | None = None
        first = FIRST_SHARE * expected_cost / self._limit / max(1, memory.num_rows)
        self.best_prices = np.full(memory.num_rows, first if self._is_priced else 0.0)
        if prices is not None:
            self.best_prices = prices
        self._prices = self.best_prices
        ascent.set_prices(self._prices)

    def sweep(self) -> list[IntArray]:
        """Sweeps once, changes the prices, and returns the answers read off."""
        ascent = self._ascent
        found = ascent.sweep()
        self.num_sweeps += 1
        bound = ascent.current_bound()
        if self.best_bound is None or bound > self.best_bound:
            self.best_bound, self.best_prices, self._since = bound, self._prices, 0
        else:
            self._since += 1
        if self._is_priced:
            self._follow(found)
        return found

    def _follow(self, found: list[IntArray]) -> None:
        layout = self._ascent.layout
        uses = [use_by_row(layout.memory, layout.num_choices, choices) for choices in found]
        use = np.mean(uses, axis=0)
        if self._use is None or self.num_sweeps < _UNSMOOTHED_SWEEPS:
            self._use = use
        else:
            self._use = (1 - _SMOOTHING) * self._use + _SMOOTHING * use
        if self._since >= _PATIENCE:
            self._step = max(_SMALLEST_STEP, self._step * _SHRINK)
            self._since = 0
            self._prices = self.best_prices
        step = self._step / (1 + self.num_sweeps / _DECAY_SWEEPS)
        change = np.clip(step * (self._use / self._limit - 1), -1.0, 1.0)
        self._prices = self._prices * np.exp(change)
        self._ascent.set_prices(self._prices)

    def settle(self, prices: FloatArray) -> None:
        """Goes back to given prices, from which the next sweeps go on."""
        self._prices = prices
        self._ascent.set_prices(prices)
