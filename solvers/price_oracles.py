"""Bounds and cheap answers at given prices of memory: what looking for prices rests on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from solvers.bound_pruning import look_near_bound
from solvers.dual_ascent import DualAscent
from solvers.elimination import EliminationCache, EliminationOrder, eliminate
from solvers.presolve import never
from solvers.problem import FORBIDDEN, Edge, IntArray, Problem
from solvers.saturating import FORBIDDEN_FROM

NEAR = 1e-4
"""An answer whose cost is this share above the bound counts as the best at given prices."""

MOST_IDLE_LOOKS = 2
"""Where so many looks above the bound in a row found nothing, answers are only read off."""

MOST_KNOWN = 16

_FOREST_MOVES = 8
_SWEEPS = 8
_MORE_SWEEPS = 20
_HARDLY_RISING = 1e-5  # of the bound, in so many sweeps


class Oracle(Protocol):
    """Bounds (and nearly minimises) a problem with extra costs."""

    def at(
        self, node_costs: Mapping[int, IntArray], edge_costs: Mapping[int, IntArray]
    ) -> tuple[int, list[IntArray]]:
        """Returns a lower bound with the extra costs, and choices that cost little with them."""
        ...


class EliminationOracle:
    """The exact minimum, where the whole problem can be eliminated.

    Args:
        problem: At most one edge a pair, ends ascending.
        order: Of all its nodes.
    """

    def __init__(self, problem: Problem, order: EliminationOrder) -> None:
        self._problem = problem
        self._order = order
        self._cache = EliminationCache()
        self._sums: dict[tuple[int, int], tuple[IntArray, IntArray, IntArray]] = {}

    def at(
        self, node_costs: Mapping[int, IntArray], edge_costs: Mapping[int, IntArray]
    ) -> tuple[int, list[IntArray]]:
        """Eliminates with the extra costs."""
        costs = list(self._problem.node_costs)
        sums: dict[tuple[int, int], tuple[IntArray, IntArray, IntArray]] = {}

        def total(base: IntArray, extra: IntArray) -> IntArray:
            key = (id(base), id(extra))
            if key not in sums:
                sums[key] = self._sums.get(key) or (base, extra, _plus(base, extra))
            return sums[key][2]

        for node, extra in node_costs.items():
            costs[node] = total(costs[node], extra)
        tables = {
            (edge.u, edge.v): total(edge.costs, edge_costs[e]) if e in edge_costs else edge.costs
            for e, edge in enumerate(self._problem.edges)
        }
        self._sums = sums
        done = eliminate(self._order, costs, tables, self._cache)
        choices = np.zeros(self._problem.num_nodes, dtype=np.int64)
        return done.constant, [done.complete(choices)]


class AscentOracle:
    """A bound by message passing that keeps what it learned at earlier prices.

    Args:
        problem: At most one edge a pair.
        known: Answers to start from.
        near: See `NEAR`.
        looks_near: Look for answers a little above the bound rather than read them off only.
        seed: For the random forests that improve answers.
        is_over: Whether to return soon.
    """

    def __init__(
        self,
        problem: Problem,
        *,
        known: Sequence[IntArray] = (),
        near: float = NEAR,
        looks_near: bool = True,
        seed: int = 0,
        is_over: Callable[[], bool] = never,
    ) -> None:
        self.ascent = DualAscent(problem)
        self._problem = problem
        self._known = [np.asarray(choices, dtype=np.int64) for choices in known]
        self._near = near
        self._looks_left = MOST_IDLE_LOOKS if looks_near else 0
        self._is_over = is_over
        self._generator = np.random.default_rng(seed)

    def at(
        self, node_costs: Mapping[int, IntArray], edge_costs: Mapping[int, IntArray]
    ) -> tuple[int, list[IntArray]]:
        """Sweeps with the extra costs until the best answer known is near, or looks for others."""
        self.ascent.set_extra_costs(node_costs, edge_costs)
        best = min(self._known, key=self.ascent.approximate_cost, default=None)
        self._raise_bound(best)
        bound = self.ascent.bound
        if best is not None and self._is_near(best):
            return bound, [best]
        if self._looks_left:
            priced = with_extra_costs(self._problem, node_costs, edge_costs)
            near = look_near_bound(priced, self.ascent, self._is_over)
            bound = max(bound, near.lower_bound)
            if near.choices is not None:
                self._looks_left = MOST_IDLE_LOOKS
                return bound, [self._keep(np.array(near.choices, dtype=np.int64))]
            self._looks_left -= 1
        return max(bound, self.ascent.bound), [self._keep(self._read_off())]

    def _raise_bound(self, best: IntArray | None) -> None:
        before = self.ascent.sweep(_SWEEPS)
        for _ in range(_MORE_SWEEPS):
            bound = self.ascent.sweep(_SWEEPS)
            is_slow = bound - before <= _HARDLY_RISING * abs(bound)
            if is_slow or self._is_over() or (best is not None and self._is_near(best)):
                break
            before = bound

    def _is_near(self, choices: IntArray) -> bool:
        cost = self.ascent.approximate_cost(choices)
        return cost - self.ascent.bound <= self._near * abs(self.ascent.bound)

    def _read_off(self) -> IntArray:
        found = [self.ascent.descended(choices) for choices in self.ascent.candidates()]
        best = min(found, key=self.ascent.approximate_cost)
        for _ in range(_FOREST_MOVES):
            best = self.ascent.moved_forest(best, self._generator)
        return best

    def _keep(self, choices: IntArray) -> IntArray:
        self._known = [choices, *self._known[: MOST_KNOWN - 1]]
        return choices


def _plus(base: IntArray, extra: IntArray) -> IntArray:
    return np.where(base >= FORBIDDEN_FROM, FORBIDDEN, base + extra)


def with_extra_costs(
    problem: Problem, node_costs: Mapping[int, IntArray], edge_costs: Mapping[int, IntArray]
) -> Problem:
    """The problem with extra costs, by node and by edge, and without its memory terms."""
    sums: dict[tuple[int, int], IntArray] = {}

    def plus(base: IntArray, extra: IntArray | None) -> IntArray:
        if extra is None:
            return base
        key = (id(base), id(extra))
        if key not in sums:
            sums[key] = _plus(base, extra)
        return sums[key]

    return replace(
        problem,
        node_costs=tuple(
            plus(costs, node_costs.get(node)) for node, costs in enumerate(problem.node_costs)
        ),
        edges=tuple(
            Edge(edge.u, edge.v, plus(edge.costs, edge_costs.get(e)))
            for e, edge in enumerate(problem.edges)
        ),
        node_memory=(),
        edge_memory=(),
        memory_limit=None,
    )
