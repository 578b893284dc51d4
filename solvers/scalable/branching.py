"""Branching where prices cannot decide: a buffer is taken small, or it is taken large.

One price per row leaves a gap where a few buffers are large next to the limit: the best answers on
either side of it are far apart. So the node whose use differs most between the answers read off is
split into its smaller and its larger choices, and both halves are bounded again. The bound of the
problem is the least bound of all open halves.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from solvers.kernels import FloatArray
from solvers.problem import IntArray
from solvers.scalable.clock import Clock, Effort
from solvers.scalable.layout import Layout
from solvers.scalable.price_rule import PriceRule
from solvers.scalable.priced_ascent import AscentState, PricedAscent

SWEEPS = 24
"""For each half, at prices that follow."""

MOST_OPEN = 400
"""Halves kept; branching stops there."""

MOST_BYTES = 256 * 2**20
"""That the halves kept may take; branching stops there too."""

_MOST_TRIED = 50


@dataclass(frozen=True, slots=True, eq=False)
class _Half:
    bound: int
    state: AscentState
    split: tuple[IntArray, IntArray]  # choices (of all nodes, flat) that go out in either half


class Branching:
    """A search tree over one problem, worked on a little at a time.

    Args:
        layout: The problem.
        ascent: Bounds it; its state changes and is not put back.
        rule: How prices follow; its best prices are where branching starts.
        take: Given every answer read off.
        most: Asked for the cost from which on answers are of no use.
        is_over: Whether to stop; bounds are then left as they are.

    Attributes:
        bound: Of the problem.
        num_bounded: Halves bounded so far.
        is_finished: Nothing is left to branch on.
    """

    def __init__(
        self,
        layout: Layout,
        ascent: PricedAscent,
        rule: PriceRule,
        take: Callable[[IntArray], None],
        most: Callable[[], float],
        is_over: Callable[[], bool],
    ) -> None:
        self._layout = layout
        self._ascent = ascent
        self._take = take
        self._most = most
        self._is_over = is_over
        self._ticket = itertools.count()
        self._open: list[tuple[int, int, _Half]] = []
        self.bound = ascent.bound
        self.num_bounded = 0
        self.is_finished = False
        self._most_open = max(2, min(MOST_OPEN, MOST_BYTES // ascent.state().num_bytes))
        ascent.set_prices(rule.best_prices)
        self._push(self._bounded(self.bound))

    def run(self, effort: Effort) -> str | None:
        """Splits the half with the least bound until the effort is spent.

        Returns:
            Why branching ended, when it did in this call.
        """
        if self.is_finished:
            return None
        clock = Clock(effort, self._is_over)
        while not clock.is_over():
            if not self._open:
                self.bound = max(self.bound, self._floor())
                return self._finish("no half is left")
            half = self._open[0][2]
            self.bound = max(self.bound, min(half.bound, self._floor()))
            if half.bound >= self._most():
                heapq.heappop(self._open)
                continue
            if not half.split[0].size:
                return self._finish("the half with the least bound has nothing left to part")
            if len(self._open) >= self._most_open:
                return self._finish(f"{len(self._open)} halves are open")
            heapq.heappop(self._open)
            for out in half.split:
                self._ascent.go_back(half.state)
                is_out = np.zeros(len(half.state.costs), dtype=bool)
                is_out[out] = True
                self._ascent.take_out(is_out)
                self._push(self._bounded(half.bound))
                clock.count(SWEEPS)
        if self._open:
            self.bound = max(self.bound, min(self._open[0][0], self._floor()))
        return None

    def _finish(self, why: str) -> str:
        self.is_finished = True
        self._open.clear()
        return f"{why}, {self.num_bounded} were bounded"

    def _floor(self) -> int:
        """The cost that answers which are out had at least."""
        most = self._most()
        return int(most) if np.isfinite(most) else 2**62

    def _push(self, half: _Half | None) -> None:
        if half is not None:
            heapq.heappush(self._open, (half.bound, next(self._ticket), half))

    def _bounded(self, known: int) -> _Half | None:
        """Bounds what the ascent stands at; None where nothing cheaper is in it."""
        ascent = self._ascent
        self.num_bounded += 1
        rule = PriceRule(ascent, 1.0, prices=ascent.prices, first_step=0.3)
        seen: list[IntArray] = []
        for _ in range(SWEEPS):
            if self._is_over():
                break
            found = rule.sweep()
            seen += found
            for choices in found:
                self._take(choices)
            if rule.best_bound is not None and rule.best_bound >= self._most():
                return None
        ascent.set_prices(rule.best_prices)
        most = self._most()
        bound = max(known, rule.best_bound or 0)
        if np.isfinite(most):
            ascent.take_out(ascent.beyond(most))  # sweeps: what is proven holds at these prices
            bound = max(bound, ascent.current_bound())
        if bound >= most:
            return None
        return _Half(bound, ascent.state(), self._split(seen))

    def _split(self, seen: list[IntArray]) -> tuple[IntArray, IntArray]:
        """Picks the node whose priced use differs most between answers, and parts its choices."""
        nothing = np.empty(0, dtype=np.int64)
        if not seen:
            return nothing, nothing
        weights, is_in = self._priced_use(), self._ascent.is_in()
        start = self._layout.graph.node_start
        taken = np.array(seen).reshape(-1, len(start) - 1) + start[:-1]
        priced = weights[taken]
        spread = priced.max(axis=0) - priced.min(axis=0)
        differs = (taken != taken[0]).any(axis=0)
        alive_most = np.maximum.reduceat(np.where(is_in, weights, -np.inf), start[:-1])
        alive_least = np.minimum.reduceat(np.where(is_in, weights, np.inf), start[:-1])
        could = np.where(np.isfinite(alive_most), alive_most - alive_least, 0.0)
        order = np.lexsort((could, differs, spread))[::-1]
        for node in order[:_MOST_TRIED].tolist():
            own = np.arange(start[node], start[node + 1])
            own = own[is_in[own]]
            if spread[node] > 0:
                is_small = weights[own] <= (priced[:, node].max() + priced[:, node].min()) / 2
            elif differs[node]:
                is_small = own == taken[0, node]
            else:
                is_small = weights[own] <= (alive_most[node] + alive_least[node]) / 2
            if is_small.any() and not is_small.all():
                return own[~is_small], own[is_small]
        return nothing, nothing

    def _priced_use(self) -> FloatArray:
        """Returns float64[choices]: what a choice's own bytes cost at the present prices."""
        costs, _ = self._ascent.energies()
        return costs - self._layout.graph.costs
