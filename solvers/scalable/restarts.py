"""Restarts: answers read off at random prices, brought down by moves of the largest regions.

Each restart descends first without a limit, so that nothing stands in its way; then prices rise
until the answer fits; then it descends within the limit, with more or less of the prices at random.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from solvers.kernels import FloatArray
from solvers.problem import IntArray
from solvers.scalable.block_moves import move_regions
from solvers.scalable.clock import Clock, Effort
from solvers.scalable.layout import FlatMemory, Layout
from solvers.scalable.price_rule import PriceRule
from solvers.scalable.priced_ascent import PricedAscent
from solvers.scalable.profile import peak_of
from solvers.scalable.region_factors import make_tables
from solvers.scalable.tree_moves import Walk, cost_of_walk, start_walk

PRICE_NOISE = 0.5
"""Standard deviation of the logarithm of random factors on the prices."""

PRICE_SHARES = (0.0, 0.2, 0.5, 0.8, 1.0)
"""Of the prices, in descents within the limit."""

_MOST_SWEEPS = 40
_FREE_PATIENCE = 10
_PATIENCE = 20
_RISE = 1.3
_MOST_RISES = 20


@dataclass(frozen=True, slots=True)
class Restarted:
    """How restarts went.

    Args:
        cost: The least of all.
        num_restarts: How many.
    """

    cost: float
    num_restarts: int


class Restarts:
    """Restarts on one problem; scratch is kept between them.

    Args:
        layout: The problem.
        ascent: Where prices are tried.
        rule: Where the best ones are.
        seed: Of the random numbers.
        is_over: Asked after each move.
    """

    def __init__(
        self,
        layout: Layout,
        ascent: PricedAscent,
        rule: PriceRule,
        seed: int,
        is_over: Callable[[], bool],
    ) -> None:
        self.layout = layout
        self._ascent = ascent
        self._rule = rule
        self._is_over = is_over
        self._random = np.random.default_rng(seed)
        num_nodes = layout.problem.num_nodes
        self._most_table = int(min(max(6e7 / num_nodes, 2e4), 3e5))
        self._tables = make_tables(layout, self._most_table)
        self._roots = np.arange(num_nodes, dtype=np.int64)
        self._free = layout.memory._replace(limit=2**62)

    def run(self, effort: Effort, take: Callable[[Walk], None]) -> Restarted:
        """Restarts until the effort is spent; hands every walk that ended to `take`."""
        clock = Clock(effort, self._is_over)
        best = np.inf
        count = 0
        while not clock.is_over():
            walk = self._restart(clock)
            count += 1
            best = min(best, float(walk.costs[1]))
            take(walk)
        self._rule.settle(self._rule.best_prices)
        return Restarted(best, count)

    def _restart(self, clock: Clock) -> Walk:
        walk = start_walk(self.layout, self._read_off(), int(self._random.integers(2**31)))
        self._descend(walk, clock)
        walk.counts[3] = peak_of(walk.profile)
        limit = self.layout.memory.limit
        if walk.counts[3] > limit:
            walk.costs[1] = np.inf
            self._rise_until_it_fits(walk, clock)
        if walk.counts[3] <= limit:
            self._descend_within(walk, clock)
        return walk

    def _read_off(self) -> IntArray:
        """Sweeps a little at random prices near the best ones."""
        prices = self._rule.best_prices
        factors = np.exp(self._random.normal(0.0, PRICE_NOISE, len(prices)))
        self._ascent.set_prices(prices * factors)
        found = self._ascent.sweep()
        for _ in range(int(self._random.integers(4, _MOST_SWEEPS))):
            found = self._ascent.sweep()
        return found[int(self._random.integers(len(found)))]

    def _descend(self, walk: Walk, clock: Clock) -> None:
        energies = self._ascent.energies()
        graph = self.layout.graph._replace(costs=energies[0], tables=energies[1])
        energy = cost_of_walk(graph, walk.choices)
        since = 0
        while since < _FREE_PATIENCE and not clock.is_over():
            self._move(walk, energies, self._free)
            clock.count(self._roots.size)
            before, energy = energy, cost_of_walk(graph, walk.choices)
            since = 0 if energy < before else since + 1

    def _rise_until_it_fits(self, walk: Walk, clock: Clock) -> None:
        share = 1.0
        for _ in range(_MOST_RISES):
            if walk.counts[3] <= self.layout.memory.limit or clock.is_over():
                return
            share *= _RISE
            self._move(walk, self._ascent.energies(share), self.layout.memory)
            clock.count(self._roots.size)

    def _descend_within(self, walk: Walk, clock: Clock) -> None:
        since = 0
        while since < _PATIENCE and not clock.is_over():
            share = float(self._random.choice(PRICE_SHARES))
            before = float(walk.costs[1])
            self._move(walk, self._ascent.energies(share), self.layout.memory)
            clock.count(self._roots.size)
            since = 0 if walk.costs[1] < before else since + 1

    def _move(
        self, walk: Walk, energies: tuple[FloatArray, FloatArray], memory: FlatMemory
    ) -> None:
        move_regions(
            self.layout.graph,
            memory,
            *energies,
            walk,
            self._tables,
            self._roots,
            1,
            0.0,
            len(self._roots),
            self._most_table,
        )
