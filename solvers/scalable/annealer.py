"""Annealing by tree moves: one walk from hot to cold, and what it ends with."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from solvers.kernels import FloatArray
from solvers.problem import IntArray
from solvers.scalable.clock import Clock, Effort
from solvers.scalable.layout import Layout
from solvers.scalable.tree_moves import (
    Walk,
    copy_walk,
    make_room,
    move_trees,
    start_walk,
)

MOST_NODES = 20
"""Nodes of a tree, at most: more of them are taken back for memory, fewer cannot pass barriers."""

MOST_WORK = 20_000
"""Table entries of a tree, at most."""

CHUNK_SECONDS = 0.03
"""The clock is read about this often."""

_COLD_SHARE = 0.04  # of a walk, at the end, without noise and prices


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How a walk cools down.

    Args:
        hot: First temperature, as a share of the best cost per node.
        cold: Last one, likewise.
        price_share: How much of the memory prices the moves see.
    """

    hot: float
    cold: float
    price_share: float

    def __str__(self) -> str:
        return f"{self.hot:g} to {self.cold:g} at {self.price_share:g} of the prices"


class Annealer:
    """Walks over one layout; scratch is kept between walks.

    Args:
        layout: The problem.
        seed: Of the random numbers.
        is_over: Asked every few hundredths of a second.
    """

    def __init__(self, layout: Layout, seed: int, is_over: Callable[[], bool]) -> None:
        self.layout = layout
        self._room = make_room(layout, 2 * MOST_NODES)
        self._roots = np.arange(layout.problem.num_nodes, dtype=np.int64)
        self._seeds = np.random.default_rng(seed)
        self._is_over = is_over
        self._chunk = 200

    def unlimited(self) -> Annealer:
        """The same without a memory limit."""
        memory = self.layout.memory._replace(limit=2**62)
        return Annealer(replace(self.layout, memory=memory), 0, self._is_over)

    def start(self, choices: IntArray) -> Walk:
        """Starts a walk at given choices with random numbers of its own."""
        return start_walk(self.layout, choices, int(self._seeds.integers(2**31)))

    def move(
        self,
        walk: Walk,
        costs: FloatArray,
        tables: FloatArray,
        num_moves: int,
        temperature: float = 0.0,
        most_nodes: int = MOST_NODES,
    ) -> None:
        """Makes moves at one temperature."""
        graph, memory = self.layout.graph, self.layout.memory
        move_trees(
            graph,
            memory,
            costs,
            tables,
            walk,
            self._room,
            self._roots,
            num_moves,
            temperature,
            most_nodes,
            MOST_WORK,
        )

    def descend(self, walk: Walk, costs: FloatArray, tables: FloatArray, effort: Effort) -> None:
        """Makes moves without noise."""
        self._run(walk, effort, lambda _: (costs, tables, 0.0))

    def anneal(
        self,
        walk: Walk,
        energies: tuple[FloatArray, FloatArray],
        hot: float,
        cold: float,
        effort: Effort,
    ) -> None:
        """Cools a walk down, and ends it without noise on the costs alone.

        Args:
            walk: Updated; its best choices are what the walk is for.
            energies: Node and edge costs with prices for memory in them.
            hot: First temperature.
            cold: Last one.
            effort: Of the whole walk.
        """
        graph = self.layout.graph

        def at(done: float) -> tuple[FloatArray, FloatArray, float]:
            if done > 1 - _COLD_SHARE:
                return graph.costs, graph.tables, 0.0
            return *energies, hot * (cold / hot) ** (done / (1 - _COLD_SHARE))

        self._run(walk, effort, at)

    def _run(
        self,
        walk: Walk,
        effort: Effort,
        at: Callable[[float], tuple[FloatArray, FloatArray, float]],
    ) -> None:
        clock = Clock(effort, self._is_over)
        is_cold = False
        while not clock.is_over():
            costs, tables, temperature = at(clock.passed())
            if temperature == 0.0 and not is_cold and np.isfinite(walk.costs[1]):
                is_cold = True
                return_to_best(self.layout, walk)
            before = time.monotonic()
            self.move(walk, costs, tables, self._chunk, temperature)
            clock.count(self._chunk)
            if clock.is_timed:
                fit = self._chunk * CHUNK_SECONDS / max(1e-6, time.monotonic() - before)
                self._chunk = int(min(max(fit, self._chunk / 2, 20), 2 * self._chunk, 20_000))


def return_to_best(layout: Layout, walk: Walk) -> None:
    """Puts a walk back to the cheapest fitting choices it passed."""
    copy_walk(start_walk(layout, walk.best, 0), walk)
