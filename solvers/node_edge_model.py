"""The linear model of a problem, as arrays: a column per choice and per allowed pair of choices.

Formula: minimise ``sum c x + sum M z`` with ::

    sum_s x[i,s] = 1                      for every node i
    sum_t z[e,s,t] = x[u,s]               for every edge e = (u, v) and choice s of u
    sum_s z[e,s,t] = x[v,t]               for every edge e = (u, v) and choice t of v
    sum_terms usage . (x or z) <= limit   for every memory row that was added
    x binary, z >= 0

(marginal consistency: with x integer, z follows, so only x needs to be integer).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from solvers.float_bound import CostGrid, proven_bound
from solvers.problem import IntArray, Problem
from solvers.saturating import is_allowed

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class NodeEdgeModel:
    """Equality rows in coordinate form.

    Args:
        problem: What is modelled.
        node_offsets: int64[nodes + 1]: first column of each node.
        edge_offsets: int64[edges + 1]: first column of each edge.
        pairs: int64[columns of the edge]: flat index into the edge's table, per edge.
        costs: int64[columns], above the least of the same node's or edge's table.
        offset: The sum of those least costs; engines do not see it, so that it takes none of the
            digits they have.
        upper_bounds: float64[columns]; 0 where a choice is forbidden.
        row_ids: int64[entries].
        column_ids: int64[entries].
        coefficients: float64[entries].
        right_hand_sides: float64[rows].
    """

    problem: Problem
    node_offsets: IntArray
    edge_offsets: IntArray
    pairs: tuple[IntArray, ...]
    costs: IntArray
    offset: int
    upper_bounds: FloatArray
    row_ids: IntArray
    column_ids: IntArray
    coefficients: FloatArray
    right_hand_sides: FloatArray

    @property
    def num_columns(self) -> int:
        return len(self.costs)

    @property
    def size(self) -> str:
        """How large it is, for the log."""
        return f"model of {self.num_columns} columns, {len(self.right_hand_sides)} rows"

    @property
    def num_choice_columns(self) -> int:
        """The first columns, those that must be integer."""
        return int(self.node_offsets[-1])

    def proven_bound(self, bound: float, scale: float) -> int:
        """Returns what an engine's bound, in units of `scale`, proves in integers."""
        edges = self.problem.edges
        proven = proven_bound(bound, scale, self.problem.num_nodes + len(edges))
        tables = (*self.problem.node_costs, *(edge.costs for edge in edges))
        return CostGrid.of(tables).round_up(self.offset + proven)

    def memory_row(self, row: int) -> tuple[IntArray, FloatArray]:
        """Returns the columns that hold memory at a row, and how much each holds."""
        columns: list[IntArray] = []
        usages: list[IntArray] = []
        for term in self.problem.node_memory:
            if term.start <= row < term.stop:
                columns.append(self.node_offsets[term.node] + np.arange(len(term.usage)))
                usages.append(term.usage)
        for pair_term in self.problem.edge_memory:
            if pair_term.start <= row < pair_term.stop:
                pairs = self.pairs[pair_term.edge]
                columns.append(self.edge_offsets[pair_term.edge] + np.arange(len(pairs)))
                usages.append(pair_term.usage.ravel()[pairs])
        held = np.bincount(
            np.concatenate(columns),
            weights=np.concatenate(usages).astype(np.float64),
            minlength=self.num_columns,
        )
        at = np.flatnonzero(held).astype(np.int64)
        return at, np.asarray(held[at], dtype=np.float64)

    def scaled_memory_row(self, row: int) -> tuple[IntArray, FloatArray, float]:
        """A memory row in shares of its largest usage: its columns, what each holds, the limit.

        Of each node and pair only what is above its least counts, and the limit is a multiple of
        what divides all of that: where that is large, what an engine takes for zero is no room.
        """
        columns, usages = self.memory_row(row)
        held = np.zeros(self.num_columns, dtype=np.int64)
        held[columns] = usages
        firsts = np.unique(np.concatenate((self.node_offsets, self.edge_offsets)))
        least = np.minimum.reduceat(held, firsts[:-1])
        above = held - np.repeat(least, np.diff(firsts))
        left = (self.problem.memory_limit or 0) - int(least.sum())
        step = max(1, int(np.gcd.reduce(above)))
        at = np.flatnonzero(above).astype(np.int64)
        unit = max(1.0, float(above.max(initial=0)))
        return at, above[at] / unit, left // step * step / unit

    def columns_of(self, choices: Sequence[int]) -> FloatArray:
        """Returns the column values that stand for given choices."""
        values = np.zeros(self.num_columns)
        chosen = np.asarray(choices, dtype=np.int64)
        values[self.node_offsets[:-1] + chosen] = 1.0
        for e, edge in enumerate(self.problem.edges):
            flat = chosen[edge.u] * edge.costs.shape[1] + chosen[edge.v]
            at = np.searchsorted(self.pairs[e], flat)
            if at < len(self.pairs[e]) and self.pairs[e][at] == flat:
                values[self.edge_offsets[e] + at] = 1.0
        return values

    def choices_of(self, values: FloatArray) -> tuple[int, ...]:
        """Returns each node's choice with the largest column value."""
        return tuple(
            int(values[start:stop].argmax())
            for start, stop in zip(self.node_offsets, self.node_offsets[1:], strict=False)
        )


def build_node_edge_model(problem: Problem) -> NodeEdgeModel:
    """Builds the model without memory rows; forbidden pairs get no column."""
    num_choices = np.array([len(costs) for costs in problem.node_costs], dtype=np.int64)
    node_offsets = np.concatenate(([0], np.cumsum(num_choices))).astype(np.int64)
    num_nodes = problem.num_nodes
    allowed = [is_allowed(costs) for costs in problem.node_costs]
    all_allowed = np.concatenate(allowed) if allowed else np.empty(0, dtype=bool)
    least = [
        int(c[ok].min()) if ok.any() else 0
        for ok, c in zip(allowed, problem.node_costs, strict=True)
    ]
    costs = [
        np.where(ok, c - low, 0)
        for ok, c, low in zip(allowed, problem.node_costs, least, strict=True)
    ]
    offset = sum(least)
    row_ids = [np.repeat(np.arange(num_nodes, dtype=np.int64), num_choices)]
    column_ids = [np.arange(node_offsets[-1], dtype=np.int64)]
    coefficients = [np.ones(int(node_offsets[-1]))]
    offsets = [int(node_offsets[-1])]
    pairs: list[IntArray] = []
    pairs_by_table: dict[int, IntArray] = {}
    num_rows = num_nodes
    for edge in problem.edges:
        if id(edge.costs) not in pairs_by_table:
            pairs_by_table[id(edge.costs)] = np.flatnonzero(is_allowed(edge.costs))
        here = pairs_by_table[id(edge.costs)]
        num_u, num_v = edge.costs.shape
        s, t = np.divmod(here, num_v)
        columns = offsets[-1] + np.arange(len(here), dtype=np.int64)
        row_ids += [
            num_rows + s,
            num_rows + num_u + t,
            num_rows + np.arange(num_u + num_v, dtype=np.int64),
        ]
        column_ids += [
            columns,
            columns,
            node_offsets[edge.u] + np.arange(num_u, dtype=np.int64),
            node_offsets[edge.v] + np.arange(num_v, dtype=np.int64),
        ]
        coefficients += [np.ones(2 * len(here)), np.full(num_u + num_v, -1.0)]
        paid = edge.costs.ravel()[here]
        low = int(paid.min()) if len(paid) else 0
        offset += low
        costs.append(paid - low)
        pairs.append(here)
        offsets.append(offsets[-1] + len(here))
        num_rows += num_u + num_v
    right_hand_sides = np.zeros(num_rows)
    right_hand_sides[:num_nodes] = 1.0
    upper_bounds = np.ones(offsets[-1])
    upper_bounds[: len(all_allowed)] = all_allowed
    return NodeEdgeModel(
        problem=problem,
        node_offsets=node_offsets,
        edge_offsets=np.array(offsets, dtype=np.int64),
        pairs=tuple(pairs),
        costs=np.concatenate(costs) if costs else np.empty(0, dtype=np.int64),
        offset=offset,
        upper_bounds=upper_bounds,
        row_ids=np.concatenate(row_ids),
        column_ids=np.concatenate(column_ids),
        coefficients=np.concatenate(coefficients),
        right_hand_sides=right_hand_sides,
    )
