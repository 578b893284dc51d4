"""Moves of single nodes under the hard limit: repair what does not fit, improve what does."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from solvers.memory_rows import RowUse
from solvers.problem import FORBIDDEN, Edge, EdgeMemory, IntArray, NodeMemory, Problem

_MOST_ROUNDS = 20
"""Of moves to cheaper choices; after that what still improves is left as it is."""


@dataclass(slots=True)
class _Held:
    """Equal memory terms of a node, as copies of a part that are tied have them.

    Args:
        usage: int64[choices], or int64[choices, choices of the other node].
        far: The other node; -1: none.
        spans: First row and end of each term.
    """

    usage: IntArray
    far: int
    spans: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _NodeMemory:
    """The memory terms of a node over rows.

    Args:
        held: Its terms.
        pieces: int64[pieces, 2]: first row and end of runs of rows in which the same terms hold.
        times: int64[pieces, held]: how many terms of each kind hold in a piece.
    """

    held: list[_Held]
    pieces: IntArray
    times: IntArray

    @classmethod
    def of(cls, held: list[_Held]) -> _NodeMemory:
        """The memory of a node with these terms."""
        rows = np.unique([row for one in held for span in one.spans for row in span])
        times = np.zeros((max(len(rows) - 1, 0), len(held)), dtype=np.int64)
        for number, one in enumerate(held):
            for first, last in np.searchsorted(rows, one.spans).tolist():
                times[first:last, number] += 1
        is_held = times.any(axis=1)
        pieces = np.column_stack((rows[:-1], rows[1:])).astype(np.int64)
        return cls(held, pieces[is_held], times[is_held])

    @property
    def num_rows(self) -> IntArray:
        """Returns int64[pieces]."""
        return self.pieces[:, 1] - self.pieces[:, 0]

    def rows_of(self, chosen: npt.NDArray[np.bool_]) -> tuple[IntArray, IntArray]:
        """Returns int64[rows] twice: the rows of chosen pieces, and the piece of each."""
        numbers = np.flatnonzero(chosen)
        starts, stops = self.pieces[numbers].T
        lengths = stops - starts
        ends = np.cumsum(lengths)
        rows = np.arange(lengths.sum()) + np.repeat(starts - ends + lengths, lengths)
        return rows, np.repeat(numbers, lengths)


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
        held: list[dict[tuple[int, int], _Held]] = [{} for _ in problem.node_costs]

        def hold(node: int, usage: IntArray, term: NodeMemory | EdgeMemory, far: int) -> None:
            if len(problem.node_costs[node]) == 1:  # it never moves; it may stand for thousands
                return
            one = held[node].setdefault((id(term.usage), far), _Held(usage, far))
            one.spans.append((term.start, term.stop))

        for term in problem.node_memory:
            hold(term.node, term.usage, term, -1)
        for pair_term in problem.edge_memory:
            edge = problem.edges[pair_term.edge]
            hold(edge.u, pair_term.usage, pair_term, edge.v)
            hold(edge.v, pair_term.usage.T, pair_term, edge.u)
        self._memory = [_NodeMemory.of([*of_node.values()]) for of_node in held]

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
        for node, memory in enumerate(self._memory):
            if _is_over(deadline):
                return False
            first, last = np.searchsorted(above, memory.pieces.T)
            if (first < last).any():
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
    ) -> IntArray:
        """Moves single nodes to cheaper choices that fit, until none is left."""
        state = _State(self, choices)
        pending = list(range(self.problem.num_nodes))
        for _ in range(_MOST_ROUNDS):
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
        self._padded = np.append(search._use.held(self.choices), 0)  # ends of pieces are in it
        self.held = self._padded[:-1]

    def excess(self) -> int:
        """Bytes above the limit, summed over rows."""
        over = self.held - (self.search.limit or 0)
        return int(over[over > 0].sum())

    def best_relief(self, node: int) -> tuple[float, int] | None:
        """Returns (cost per byte of excess less, choice) of a node's best such move."""
        memory, more, paid = self.search._memory[node], self._more(node), self.paid[node]
        can_relieve = (more.min(axis=0, initial=0) < 0) & (paid < self.search.forbidden // 2)
        choices = np.flatnonzero(can_relieve)
        if not choices.size:
            return None
        added = memory.times @ more[:, choices]
        limit = self.search.limit or 0
        least = self._by_piece(np.minimum, node) + added.min(axis=1, initial=0)
        most = self._by_piece(np.maximum, node) + added.max(axis=1, initial=0)
        relief = -(memory.num_rows[least >= limit] @ added[least >= limit])
        rows, piece_of = memory.rows_of((least < limit) & (limit < most))
        over = self.held[rows] - limit
        excess = np.maximum(over[:, None] + added[piece_of], 0).sum(axis=0)
        relief += np.maximum(over, 0).sum() - excess
        if relief.max() <= 0:
            return None
        dearer = paid[choices] - paid[self.choices[node]]
        price = np.where(relief > 0, dearer / np.maximum(relief, 1), np.inf)
        best = int(price.argmin())
        return float(price[best]), int(choices[best])

    def best_improvement(self, node: int) -> int | None:
        """Returns a node's cheapest choice that fits, if it is cheaper than the current one."""
        paid = self.paid[node]
        current = int(self.choices[node])
        if paid.min() >= paid[current]:
            return None
        cheaper = np.flatnonzero(paid < paid[current])
        if self.search.limit is not None:
            held = self._by_piece(np.maximum, node)[:, None]
            added = self.search._memory[node].times @ self._more(node)[:, cheaper]
            fits = (held + added <= self.search.limit).all(axis=0)
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

    def _by_piece(self, extreme: np.ufunc, node: int) -> IntArray:
        """Returns int64[pieces]: the most or the least held at a row of each piece of a node."""
        pieces = self.search._memory[node].pieces
        if not len(pieces):
            return np.empty(0, dtype=np.int64)
        found: IntArray = extreme.reduceat(self._padded, pieces.ravel())[::2]
        return found

    def _usage(self, one: _Held) -> IntArray:
        """Returns int64[choices]: what a term holds, as the other node chooses now."""
        return one.usage if one.far < 0 else one.usage[:, self.choices[one.far]]

    def _more(self, node: int) -> IntArray:
        """Returns int64[held, choices]: use that each term adds by moving to each choice."""
        memory, current = self.search._memory[node], int(self.choices[node])
        more = np.zeros((len(memory.held), len(self.paid[node])), dtype=np.int64)
        for number, one in enumerate(memory.held):
            usage = self._usage(one)
            more[number] = usage - usage[current]
        return more

    def move(self, node: int, choice: int) -> None:
        """Takes a new choice at a node."""
        search = self.search
        current = int(self.choices[node])
        for one in search._memory[node].held:
            usage = self._usage(one)
            more = usage[choice] - usage[current]
            if more:
                for start, stop in one.spans:
                    self.held[start:stop] += more
        for e, other, is_turned in search._edges_of[node]:
            costs = search.problem.edges[e].costs
            if is_turned:
                self.paid[other] += costs[:, choice] - costs[:, current]
            else:
                self.paid[other] += costs[choice] - costs[current]
        self.choices[node] = choice
