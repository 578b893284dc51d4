"""Optima at given prices: without memory terms a problem reduces far further, and may be closed.

Every price gives a bound; where memory fits at the optimum, that is an answer too. After some
factors on the prices the interval between one whose optimum fits and one whose optimum does not is
halved; what lies between all these answers is found by recombining them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from solvers.bound_pruning import solve_by_bounds
from solvers.engines.protocol import Request
from solvers.kernels import FloatArray
from solvers.memory_pricing import resolution_factor, with_costs_times
from solvers.memory_rows import RowUse, num_rows_of, priced
from solvers.presolve import reduce_fully
from solvers.price_oracles import with_extra_costs
from solvers.problem import IntArray, Problem
from solvers.recombination import recombine
from solvers.scalable.clock import Clock, Effort

RELATIVE_GAP = 1e-4
"""At which an optimum at given prices counts as found."""


FACTORS = (1.0, 1.3, 0.75, 1.15, 0.9, 1.7)
"""On the prices, before any halving: their answers differ, which is what recombining them needs."""

RECOMBINED_GAP = 1e-3
"""At which the best of recombined answers counts as found."""

_MOST_FACTORS = 12  # where all fit, or none
_NEAR_FACTORS = 0.01


class PricedOptimum:
    """Solves one problem at one set of prices after another.

    Args:
        problem: With a memory limit; times are row numbers.
        take: Given every optimum.
        offer_bound: Given every bound.
        is_over: Whether to stop.

    Attributes:
        is_closed: At the last prices the optimum was found: the problem is of the kind that reduces
            far without memory terms, so that going on pays.
    """

    def __init__(
        self,
        problem: Problem,
        take: Callable[[IntArray], None],
        offer_bound: Callable[[int], None],
        is_over: Callable[[], bool],
    ) -> None:
        self._factor = resolution_factor(problem)
        self._problem = with_costs_times(problem, self._factor)
        self._use = RowUse(problem, num_rows_of(problem))
        self._limit = problem.memory_limit or 0
        self._take = take
        self._offer_bound = offer_bound
        self._is_over = is_over
        self._fits_from: float | None = None
        self._fails_to: float | None = None
        self._tried: list[float] = []
        self._answers: dict[bytes, IntArray] = {}
        self._num_recombined = 0
        self.is_closed = False

    @property
    def is_settled(self) -> bool:
        """Whether no further prices are worth trying."""
        return self._are_prices_settled() and not self._is_worth_recombining()

    def run(self, prices: FloatArray, effort: Effort) -> int:
        """Solves at multiples of the prices until the effort is spent; returns at how many."""
        clock = Clock(effort, self._is_over)
        count = 0
        while not clock.is_over() and not self.is_settled:
            deadline = None
            if effort.seconds is not None:
                deadline = time.monotonic() + max(0.0, 1 - clock.passed()) * effort.seconds
            if self._is_worth_recombining():
                self._recombine(deadline, clock.is_over)
                continue
            factor = self._next_factor()
            self._solve(prices * factor, factor, deadline, clock.is_over)
            clock.count(self._problem.num_nodes)
            count += 1
        return count

    def _is_worth_recombining(self) -> bool:
        """Whether answers on both sides of the limit are known, and new ones since last time."""
        has_both = self._fits_from is not None and self._fails_to is not None
        return has_both and len(self._answers) > self._num_recombined

    def _recombine(self, deadline: float | None, is_over: Callable[[], bool]) -> None:
        self._num_recombined = len(self._answers)
        request = Request(deadline=deadline, relative_gap=RECOMBINED_GAP, stop=is_over)
        found = recombine(self._problem, list(self._answers.values()), request)
        if found is not None:
            self._take(found)

    def _are_prices_settled(self) -> bool:
        if self._fits_from is None or self._fails_to is None:
            return len(self._tried) >= _MOST_FACTORS
        is_near = self._fits_from - self._fails_to < _NEAR_FACTORS * self._fits_from
        return is_near and len(self._tried) >= len(FACTORS)

    def _next_factor(self) -> float:
        for factor in FACTORS:
            if factor not in self._tried:
                return factor
        fits, fails = self._fits_from, self._fails_to
        if fits is not None and fails is not None:
            return (fits + fails) / 2
        return 1.3 * max(self._tried) if fits is None else 0.75 * min(self._tried)

    def _solve(
        self,
        prices: FloatArray,
        factor: float,
        deadline: float | None,
        is_over: Callable[[], bool],
    ) -> None:
        self._tried.append(factor)
        by_row = {row: float(p) * self._factor for row, p in enumerate(prices) if p > 0}
        reduced = reduce_fully(self._priced(by_row), is_over=is_over)
        if is_over():
            self._tried.pop()
            return
        if reduced.is_infeasible:
            return
        answer = solve_by_bounds(
            reduced.problem, relative_gap=RELATIVE_GAP, deadline=deadline, seed=0, hints=()
        )
        total = sum((Fraction(price) for price in by_row.values()), Fraction(0))
        bound = answer.lower_bound + reduced.constant - math.ceil(total * self._limit)
        self._offer_bound(-(-bound // self._factor))
        if answer.choices is None:
            return
        if answer.gap <= RELATIVE_GAP:
            self.is_closed = True
        elif not is_over():  # else the time was too short to tell
            self.is_closed = False
        choices = np.array(reduced.restore(answer.choices), dtype=np.int64)
        self._answers[choices.tobytes()] = choices
        self._take(choices)
        if int(self._use.held(choices).max(initial=0)) <= self._limit:
            self._fits_from = min(factor, self._fits_from or factor)
        else:
            self._fails_to = max(factor, self._fails_to or factor)

    def _priced(self, by_row: dict[int, float]) -> Problem:
        """The problem with prices in its costs instead of memory terms."""
        return with_extra_costs(self._problem, *priced(self._problem, by_row, self._use.num_rows))
