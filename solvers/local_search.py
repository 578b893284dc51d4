"""Moves of single nodes under the hard limit: repair what does not fit, improve what does."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from solvers.memory_rows import RowUse
from solvers.problem import FORBIDDEN, Edge, IntArray, Problem


class LocalSearch:
    """Keeps, for current choices, what every node would pay for each choice, and use by row.

    Args:
        problem: Times are row numbers; at most one edge a pair.
        num_rows: How many rows there are.
    """

    def __init__(self, problem: Problem, num_rows: int) -> None:
        degree = [0] * problem.num_nodes
        for edge in problem.edges:
            degree[edge.u] += 1
            degree[edge.v] += 1
        self.forbidden = min(FORBIDDEN, 2**61 // (max(degree, default=0) + 2))
        if self.forbidden < FORBIDDEN:
            problem = _capped(problem, self.forbidden)
        self.problem = problem
        self.limit = problem.memory_limit
        self._use = RowUse(problem, num_rows)
        self._edges_of: list[list[tuple[int, int, bool]]] = [[] for _ in problem.node_costs]
        for e, edge in enumerate(problem.edges):
            self._edges_of[edge.u].append((e, edge.v, False))
            self._edges_of[edge.v].append((e, edge.u, True))
        self._terms_of: list[list[tuple[int, int, IntArray]]] = [[] for _ in problem.node_costs]
        for term in problem.node_memory:
            self._terms_of[term.node].append((term.start, term.stop, term.usage))
        self._pair_terms_of: list[list[tuple[int, int, IntArray, int]]] = [
            [] for _ in problem.node_costs
        ]
        for pair_term in problem.edge_memory:
            edge = problem.edges[pair_term.edge]
            span = (pair_term.start, pair_term.stop)
            self._pair_terms_of[edge.u].append((*span, pair_term.usage, edge.v))
            self._pair_terms_of[edge.v].append((*span, pair_term.usage.T, edge.u))
        self._spans = [self._span(node) for node in range(problem.num_nodes)]

    def _span(self, node: int) -> tuple[int, int]:
        terms = [*self._terms_of[node], *(t[:3] for t in self._pair_terms_of[node])]
        return min((t[0] for t in terms), default=0), max((t[1] for t in terms), default=0)

    def repaired(
        self, choices: Sequence[int] | IntArray, *, deadline: float | None = None
    ) -> IntArray:
        """Moves nodes until the limit is kept, at the least cost per byte; may end above it.

        Args:
            choices: One per node; may be above the limit, should not be forbidden.
            deadline: `time.monotonic` value to stop at.

        Returns:
            int64[nodes]: within the limit or where no single move lowers the excess any more.
        """
        state = _State(self, choices)
        while state.excess() > 0 and not _is_over(deadline):
            if not self._lower_excess(state, deadline):
                break
        return state.choices

    def blended(
        self,
        fitting: Sequence[int] | IntArray,
        cheaper: Sequence[int] | IntArray,
        *,
        deadline: float | None = None,
    ) -> IntArray:
        """Takes over, part by part, what another answer does better, as far as it fits.

        The nodes at which the two differ fall into parts that share no edge, so each part's gain
        stands for itself.

        Args:
            fitting: One choice per node, within the limit.
            cheaper: One choice per node, within the limit or not.
            deadline: `time.monotonic` value to stop at.

        Returns:
            int64[nodes]: within the limit, at most the cost of `fitting`.
        """
        state = _State(self, fitting)
        other = np.asarray(cheaper, dtype=np.int64)
        wanted = []
        for part in self._parts(np.flatnonzero(state.choices != other)):
            gain, growth = state.try_part(part, other)
            if gain > 0:
                wanted.append((growth / gain, part))
        for _, part in sorted(wanted, key=lambda item: (item[0], item[1][0])):
            if _is_over(deadline):
                break
            state.take_part_if_better(part, other)
        return state.choices

    def _parts(self, nodes: IntArray) -> list[list[int]]:
        """Splits nodes into connected parts."""
        left = set(nodes.tolist())
        parts = []
        for first in nodes.tolist():
            if first not in left:
                continue
            left.discard(first)
            part = [first]
            for node in part:
                for _, far, _ in self._edges_of[node]:
                    if far in left:
                        left.discard(far)
                        part.append(far)
            parts.append(part)
        return parts

    def _lower_excess(self, state: _State, deadline: float | None) -> bool:
        """Makes the best moves found in one look at every node live where the excess is."""
        above = np.flatnonzero(state.held > (self.limit or 0))
        moves = []
        for node, (start, stop) in enumerate(self._spans):
            if _is_over(deadline):
                return False
            first = np.searchsorted(above, start)
            if first < len(above) and above[first] < stop:
                move = state.best_relief(node)
                if move is not None:
                    moves.append((*move, node))
        moves.sort()
        did_move = False
        for _, _, node in moves[: max(1, len(moves) // 4)]:
            if state.excess() == 0 or _is_over(deadline):
                break
            again = state.best_relief(node)  # Earlier moves changed what this one brings.
            if again is not None:
                state.move(node, again[1])
                did_move = True
        return did_move

    def improved(
        self,
        choices: Sequence[int] | IntArray,
        *,
        deadline: float | None = None,
        most_rounds: int = 20,
    ) -> IntArray:
        """Moves single nodes to cheaper choices that fit, until none is left."""
        state = _State(self, choices)
        pending = list(range(self.problem.num_nodes))
        for _ in range(most_rounds):
            touched: set[int] = set()
            for node in pending:
                if _is_over(deadline):
                    return state.choices
                choice = state.best_improvement(node)
                if choice is not None:
                    state.move(node, choice)
                    touched.update(other for _, other, _ in self._edges_of[node])
            if not touched:
                break
            pending = sorted(touched)
        return state.choices


def _capped(problem: Problem, most: int) -> Problem:
    """The same problem with lower forbidden costs, so that sums over many edges fit 64 bits."""
    tables: dict[int, IntArray] = {}
    for edge in problem.edges:
        if id(edge.costs) not in tables:
            tables[id(edge.costs)] = np.minimum(edge.costs, most)
    return replace(
        problem,
        node_costs=tuple(np.minimum(costs, most) for costs in problem.node_costs),
        edges=tuple(Edge(edge.u, edge.v, tables[id(edge.costs)]) for edge in problem.edges),
    )


def _is_over(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() >= deadline


class _State:
    """Current choices with what follows from them, kept up to date by `move`."""

    def __init__(self, search: LocalSearch, choices: Sequence[int] | IntArray) -> None:
        self.search = search
        self.choices = np.array(choices, dtype=np.int64)
        problem = search.problem
        self.paid = [costs.copy() for costs in problem.node_costs]
        for edge in problem.edges:
            self.paid[edge.u] += edge.costs[:, self.choices[edge.v]]
            self.paid[edge.v] += edge.costs[self.choices[edge.u]]
        self.held = search._use.held(self.choices)

    def excess(self) -> int:
        """Bytes above the limit, summed over rows."""
        over = self.held - (self.search.limit or 0)
        return int(over[over > 0].sum())

    def best_relief(self, node: int) -> tuple[float, int] | None:
        """Returns (cost per byte of excess less, choice) of a node's best such move."""
        added = self._added(node)
        if added is None:
            return None
        start, stop = self.search._spans[node]
        over = np.maximum(self.held[start:stop] + added - (self.search.limit or 0), 0)
        excess = over.sum(axis=1)
        current = int(self.choices[node])
        relief = excess[current] - excess
        relief[self.paid[node] >= self.search.forbidden // 2] = 0
        if relief.max() <= 0:
            return None
        price = np.where(
            relief > 0,
            (self.paid[node] - self.paid[node][current]) / np.maximum(relief, 1),
            np.inf,
        )
        choice = int(price.argmin())
        return float(price[choice]), choice

    def best_improvement(self, node: int) -> int | None:
        """Returns a node's cheapest choice that fits, if it is cheaper than the current one."""
        paid = self.paid[node]
        current = int(self.choices[node])
        if paid.min() >= paid[current]:
            return None
        cheaper = np.flatnonzero(paid < paid[current])
        added = self._added(node)
        if added is not None and self.search.limit is not None:
            start, stop = self.search._spans[node]
            fits = (self.held[start:stop] + added[cheaper] <= self.search.limit).all(axis=1)
            cheaper = cheaper[fits]
        if not cheaper.size:
            return None
        return int(cheaper[paid[cheaper].argmin()])

    def try_part(self, part: list[int], other: IntArray) -> tuple[int, int]:
        """Returns (cost saved, growth of the highest use) if a part took the other's choices."""
        before = self.choices[part]
        peak = int(self.held.max(initial=0))
        saved = self._take(part, other[part])
        growth = max(0, int(self.held.max(initial=0)) - peak)
        self._take(part, before)
        return saved, growth

    def take_part_if_better(self, part: list[int], other: IntArray) -> None:
        """Lets a part take the other's choices where that saves cost and fits."""
        before = self.choices[part]
        saved = self._take(part, other[part])
        if saved <= 0 or self.held.max(initial=0) > (self.search.limit or 0):
            self._take(part, before)

    def _take(self, part: list[int], choices: IntArray) -> int:
        saved = 0
        for node, choice in zip(part, choices.tolist(), strict=True):
            paid = self.paid[node]
            saved += int(paid[self.choices[node]]) - int(paid[choice])
            self.move(node, choice)
        return saved

    def _added(self, node: int) -> IntArray | None:
        """Returns int64[choices, rows of the node's span]: use added by moving to each choice."""
        search = self.search
        start, stop = search._spans[node]
        if start == stop:
            return None
        current = int(self.choices[node])
        added = np.zeros((len(self.paid[node]), stop - start), dtype=np.int64)
        for first, last, usage in search._terms_of[node]:
            added[:, first - start : last - start] += (usage - usage[current])[:, None]
        for first, last, pair_usage, other in search._pair_terms_of[node]:
            column = pair_usage[:, self.choices[other]]
            added[:, first - start : last - start] += (column - column[current])[:, None]
        return added

    def move(self, node: int, choice: int) -> None:
        """Takes a new choice at a node."""
        search = self.search
        current = int(self.choices[node])
        added = self._added(node)
        if added is not None:
            start, stop = search._spans[node]
            self.held[start:stop] += added[choice]
        for e, other, is_turned in search._edges_of[node]:
            costs = search.problem.edges[e].costs
            if is_turned:
                self.paid[other] += costs[:, choice] - costs[:, current]
            else:
                self.paid[other] += costs[choice] - costs[current]
        self.choices[node] = choice
