"""Lower bounds by message passing: costs are moved between nodes and edges until a bound shows.

Whatever moves, the cost of every answer stays the same; the sum of all least costs is then a bound.
All of it is whole numbers, so the bound is a proof and not an estimate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from solvers.kernels import (
    FlatGraph,
    FloatArray,
    ascend,
    decode,
    descend,
    move_forest,
    total_cost,
)
from solvers.problem import FORBIDDEN, IntArray, Problem
from solvers.saturating import FORBIDDEN_FROM, saturate

CAP = 2.0**49
"""Stands for a forbidden cost; sums of a few stay exact in a double."""

LARGEST_TOTAL = 2.0**48
"""Costs are halved until all of an answer's add up to less, so that `CAP` is above any answer."""

HEADROOM = 4.0
"""How much extra costs may add before the costs must be halved again."""

BoolArray = npt.NDArray[np.bool_]

_UNREACHED = 2**62
_MOST_DESCENTS = 100


class DualAscent:
    """A problem's costs, redistributed so far, and the bound that proves.

    Memory terms of the problem are ignored: the bound holds with them too, answers may not fit.
    With extra costs (multiplier times usage) the bound is one on the costs with the extra ones;
    take off multiplier times limit for a bound on the problem with its memory limit.

    Args:
        problem: A problem `verify_problem` finds no fault with.

    Attributes:
        bound: No answer costs less (extra costs included).
        reach: int64[choices of all nodes]: no answer with that choice costs less.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        sizes = [len(costs) for costs in problem.node_costs]
        self._node_start = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
        self._base_costs = _joined([saturate(costs) for costs in problem.node_costs])
        self._sizes = sizes
        self._lay_out_edges()
        self._order = np.arange(problem.num_nodes, dtype=np.int64)
        self._work = np.zeros(max(sizes, default=1))
        self._shift = -1
        self._last_backward = True
        self._constant = 0.0
        self._costs = self._slack = self._reach = np.empty(0)
        self._extra_nodes: dict[int, IntArray] = {}
        self._extra_edges: dict[int, IntArray] = {}
        self.set_extra_costs({}, {})

    def _lay_out_edges(self) -> None:
        halves: list[list[tuple[int, int, bool]]] = [[] for _ in self._sizes]
        for e, edge in enumerate(self._problem.edges):
            halves[edge.u].append((edge.v, e, True))
            halves[edge.v].append((edge.u, e, False))
        flat = [half for of_node in halves for half in of_node]
        self._half_start = np.concatenate(([0], np.cumsum([len(h) for h in halves]))).astype(
            np.int64
        )
        self._half_far = np.array([far for far, _, _ in flat], dtype=np.int64)
        self._half_edge = [(e, is_turned) for _, e, is_turned in flat]
        at_edge: dict[tuple[int, bool], int] = {
            key: half for half, key in enumerate(self._half_edge)
        }
        self._half_twin = np.array(
            [at_edge[e, not is_turned] for e, is_turned in self._half_edge], dtype=np.int64
        )
        own = np.repeat(np.asarray(self._sizes, dtype=np.int64), np.diff(self._half_start))
        self._message_start = np.concatenate(([0], np.cumsum(own))).astype(np.int64)
        self._half_message = self._message_start[:-1].copy()
        self._messages = np.zeros(int(self._message_start[-1]))
        self._at_edge = at_edge

    def set_extra_costs(
        self, node_costs: Mapping[int, IntArray], edge_costs: Mapping[int, IntArray]
    ) -> None:
        """Replaces all extra costs; what was learned so far is kept as the start.

        The bound is 0 (or the sum of the negative costs) until the next `sweep`.

        Args:
            node_costs: int64[num_choices] by node.
            edge_costs: int64[num_choices_u, num_choices_v] by index into `Problem.edges`; arrays
                shared between edges that share their costs are laid out once.
        """
        self._extra_nodes, self._extra_edges = dict(node_costs), dict(edge_costs)
        costs = self._base_costs.copy()
        for node, extra in self._extra_nodes.items():
            at = slice(self._node_start[node], self._node_start[node + 1])
            costs[at] = _with_extra(costs[at], extra)
        tables: dict[tuple[int, int], IntArray] = {}
        keys = [self._table_key(e) for e in range(len(self._problem.edges))]
        for e, key in enumerate(keys):
            if key not in tables:
                tables[key] = self._edge_table(e)
        largest = {key: _largest_allowed(table) for key, table in tables.items()}
        total = sum(
            _largest_allowed(costs[start:stop])
            for start, stop in zip(self._node_start, self._node_start[1:], strict=False)
        ) + sum(largest[key] for key in keys)
        self._total = max(1, min(total, FORBIDDEN_FROM))
        shift = max(0, math.ceil(math.log2(self._total / LARGEST_TOTAL)))
        is_first = self._shift < 0
        if is_first and shift:
            shift = max(0, math.ceil(math.log2(HEADROOM * self._total / LARGEST_TOTAL)))
        if shift > self._shift:
            self._shift = shift
            self._messages[:] = 0
            is_first = True
        flat_costs = self._scaled(costs)
        self._lay_out_tables(keys, tables, flat_costs)
        if is_first:
            self._constant = 0.0
            self._slack = flat_costs.copy()
        else:
            self._slack += flat_costs - self._costs
            np.minimum(self._slack, CAP, out=self._slack)
        self._costs = flat_costs
        self._reach = np.full(len(flat_costs), -np.inf)
        self._is_settled = False
        self.bound = 0 if self._are_costs_positive(costs, tables.values()) else -total

    def _table_key(self, e: int) -> tuple[int, int]:
        extra = self._extra_edges.get(e)
        return id(self._problem.edges[e].costs), 0 if extra is None else id(extra)

    def _half_message_span(self, node: int) -> tuple[int, int]:
        first = int(self._message_start[self._half_start[node]])
        return first, int(self._message_start[self._half_start[node + 1]])

    def _edge_table(self, e: int) -> IntArray:
        table = saturate(self._problem.edges[e].costs)
        return _with_extra(table, self._extra_edges[e]) if e in self._extra_edges else table

    @staticmethod
    def _are_costs_positive(costs: IntArray, tables: Iterable[IntArray]) -> bool:
        return all(table.min(initial=0) >= 0 for table in (costs, *tables))

    def _lay_out_tables(
        self,
        keys: Sequence[tuple[int, int]],
        tables: Mapping[tuple[int, int], IntArray],
        flat_costs: FloatArray,
    ) -> None:
        first: dict[tuple[int, int, bool], int] = {}
        blocks: list[FloatArray] = []
        size = 0
        half_table = np.empty(len(self._half_edge), dtype=np.int64)
        for half, (e, is_turned) in enumerate(self._half_edge):
            key = (*keys[e], is_turned)
            if key not in first:
                table = tables[keys[e]]
                blocks.append(self._scaled(table.T if is_turned else table).ravel())
                first[key] = size
                size += table.size
            half_table[half] = first[key]
        self._graph = FlatGraph(
            node_start=self._node_start,
            half_start=self._half_start,
            half_far=self._half_far,
            half_twin=self._half_twin,
            half_message=self._half_message,
            half_table=half_table,
            tables=np.concatenate(blocks) if blocks else np.empty(0),
            costs=flat_costs,
            cap=CAP,
        )

    def _scaled(self, costs: IntArray) -> FloatArray:
        """Halves costs (rounding down) until doubles add them exactly."""
        halved = np.ascontiguousarray(costs >> self._shift).astype(np.float64)
        halved[costs >= FORBIDDEN_FROM] = CAP
        return halved

    def sweep(self, count: int = 1) -> int:
        """Passes over all nodes there and back, `count` times; returns the bound."""
        for _ in range(count):
            for _ in range(2):
                if self.is_infeasible:
                    break
                self._pass(not self._last_backward)
        return self.bound

    def _pass(self, is_backward: bool) -> None:
        order, rank = self._direction(is_backward)
        self._constant = ascend(
            self._graph,
            order,
            rank,
            self._slack,
            self._messages,
            self._reach,
            self._constant,
            self._work,
        )
        self._last_backward = is_backward
        self.bound = int(self._constant) << self._shift
        if not self._is_settled:
            # Only now is all slack non-negative, which the bound of a choice rests on.
            self._is_settled = True
            self._reach[:] = -np.inf

    def _direction(self, is_backward: bool) -> tuple[IntArray, IntArray]:
        if is_backward:
            return self._order[::-1].copy(), len(self._order) - 1 - self._order
        return self._order, self._order

    @property
    def is_infeasible(self) -> bool:
        """Whether forbidden costs alone are proven to leave no answer."""
        return self.bound > self._total

    @property
    def largest_total(self) -> int:
        """No allowed answer costs more (extra costs included)."""
        return self._total

    @property
    def reach(self) -> IntArray:
        known = np.clip(self._reach, -CAP, 4 * CAP).astype(np.int64)
        return np.where(self._reach > -CAP, known << self._shift, -_UNREACHED)

    def reach_by_node(self) -> list[IntArray]:
        """`reach`, int64[num_choices] per node."""
        reach = self.reach
        return [
            reach[start:stop]
            for start, stop in zip(self._node_start, self._node_start[1:], strict=False)
        ]

    def decoded(self) -> IntArray:
        """Returns int64[nodes]: choices read off the messages, against the last direction."""
        choices = np.zeros(self._problem.num_nodes, dtype=np.int64)
        order, rank = self._direction(not self._last_backward)
        decode(self._graph, order, rank, self._messages, choices, self._work)
        return choices

    def candidates(self) -> list[IntArray]:
        """Sweeps once and decodes after both passes."""
        found = []
        for _ in range(2):
            self._pass(not self._last_backward)
            found.append(self.decoded())
        return found

    def descended(self, choices: Sequence[int] | IntArray) -> IntArray:
        """Returns choices that no change of a single node improves."""
        moved = np.array(choices, dtype=np.int64)
        inside = np.zeros(len(moved), dtype=np.int64)
        for _ in range(_MOST_DESCENTS):
            if not descend(self._graph, moved, inside, self._work):
                break
        return moved

    def moved_forest(self, choices: IntArray, generator: np.random.Generator) -> IntArray:
        """Returns choices with those of a random forest set to their best, given the others."""
        moved = choices.copy()
        move_forest(self._graph, generator.permutation(len(choices)), moved)
        return moved

    def approximate_cost(self, choices: IntArray) -> float:
        """What choices cost, extra costs included, to compare by; above `CAP` if forbidden."""
        return total_cost(self._graph, choices)

    def pair_reach(
        self, e: int, of_u: IntArray | None = None, of_v: IntArray | None = None
    ) -> IntArray:
        """A bound on answers with a pair.

        Args:
            e: The edge.
            of_u: int64[rows]: choices of its first end to look at; None for all.
            of_v: int64[columns]: likewise of its second end.

        Returns:
            int64[rows, columns]: no answer with that pair costs less.
        """
        edge = self._problem.edges[e]
        u = slice(None) if of_u is None else of_u
        v = slice(None) if of_v is None else of_v
        first = self._graph.half_table[self._at_edge[e, False]]
        table = self._graph.tables[first : first + edge.costs.size].reshape(edge.costs.shape)[u][
            :, v
        ]
        if not self._is_settled:
            return np.full(table.shape, -_UNREACHED, dtype=np.int64)
        given_u, given_v = self._given(e)
        slack_u = self._slack[self._node_start[edge.u] : self._node_start[edge.u + 1]]
        slack_v = self._slack[self._node_start[edge.v] : self._node_start[edge.v + 1]]
        own_u, own_v = (slack_u - given_u)[u], (slack_v - given_v)[v]
        total = self._constant + table + own_u[:, None] + own_v
        result: IntArray = total.astype(np.int64) << self._shift
        return result

    def _given(self, e: int) -> tuple[FloatArray, FloatArray]:
        edge = self._problem.edges[e]
        first_u = self._half_message[self._at_edge[e, True]]
        first_v = self._half_message[self._at_edge[e, False]]
        return (
            self._messages[first_u : first_u + self._sizes[edge.u]],
            self._messages[first_v : first_v + self._sizes[edge.v]],
        )

    def recomputed_bound(self) -> int:
        """Adds the bound up again from the original costs and the messages, in integers.

        Formula: ``sum_i min(c_i + sum_e m_ei) + sum_e min(c_e - m_eu - m_ev)``, a bound whatever
        the messages are. Never below `bound`.
        """
        degree = int(np.diff(self._half_start).max(initial=0))
        messages: npt.NDArray[Any] = np.ldexp(self._messages, self._shift)
        if np.abs(messages).max(initial=0.0) * (degree + 2) < 2.0**61:
            messages = messages.astype(np.int64)
        else:  # Sums may not fit 64 bits: use Python's integers.
            messages = np.array([int(message) for message in messages], dtype=object)
        bound = 0
        for node, base in enumerate(self._problem.node_costs):
            costs = _with_extra(saturate(base), self._extra_nodes.get(node))
            first, stop = self._half_message_span(node)
            given = messages[first:stop].reshape(-1, len(costs)).sum(axis=0)
            is_out = costs >= FORBIDDEN_FROM
            reduced = np.where(is_out, _UNREACHED, costs + np.where(is_out, 0, given))
            bound += min(int(reduced.min()), FORBIDDEN)
        tables: dict[tuple[int, int], tuple[IntArray, BoolArray | None]] = {}
        for e, edge in enumerate(self._problem.edges):
            key = self._table_key(e)
            if key not in tables:
                table = self._edge_table(e)
                is_out = table >= FORBIDDEN_FROM
                tables[key] = (np.where(is_out, 0, table), is_out if is_out.any() else None)
            table, forbidden = tables[key]
            first_u = self._half_message[self._at_edge[e, True]]
            first_v = self._half_message[self._at_edge[e, False]]
            reduced = table - messages[first_u : first_u + self._sizes[edge.u], None]
            reduced -= messages[first_v : first_v + self._sizes[edge.v]]
            if forbidden is not None:
                reduced[forbidden] = _UNREACHED
            bound += min(int(reduced.min()), FORBIDDEN)
        return bound


def _joined(arrays: list[IntArray]) -> IntArray:
    return np.concatenate(arrays) if arrays else np.empty(0, dtype=np.int64)


def _with_extra(costs: IntArray, extra: IntArray | None) -> IntArray:
    if extra is None:
        return costs
    return np.where(costs >= FORBIDDEN_FROM, FORBIDDEN, costs + extra)


def _largest_allowed(costs: IntArray) -> int:
    """The largest size of an allowed cost, 0 where none is."""
    allowed = costs[costs < FORBIDDEN_FROM]
    return int(np.abs(allowed).max(initial=0))
