"""A problem in flat arrays for compiled loops: costs and tables as doubles, memory as integers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from solvers.interned import Interned
from solvers.kernels import FlatGraph
from solvers.problem import FORBIDDEN, IntArray, Problem
from solvers.saturating import saturate


class FlatMemory(NamedTuple):
    """Memory terms by node; a term of a pair of nodes is listed at both.

    Args:
        term_start: int64[nodes + 1]: first term of each node.
        first_row: int64[terms].
        stop_row: int64[terms].
        half: int64[terms]: the half-edge to the other node of a pair, -1 where the node decides
            alone.
        far: int64[terms]: that other node, -1 likewise.
        usage_start: int64[terms]: first entry in `usages`, own choices side by side; for a pair
            one such run for every choice of the other node.
        usages: int64[entries].
        num_rows: Rows the terms speak of.
        limit: The most bytes at any row.
    """

    term_start: IntArray
    first_row: IntArray
    stop_row: IntArray
    half: IntArray
    far: IntArray
    usage_start: IntArray
    usages: IntArray
    num_rows: int
    limit: int


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """A problem, flat.

    Args:
        problem: Times are row numbers.
        graph: Costs as they are; forbidden ones are `FORBIDDEN`.
        memory: With a limit nothing reaches where the problem has none.
        edge_of_half: int64[halves]: index into the problem's edges.
    """

    problem: Problem
    graph: FlatGraph
    memory: FlatMemory
    edge_of_half: IntArray

    @property
    def num_choices(self) -> IntArray:
        return np.diff(self.graph.node_start)


class _Pool:
    """Arrays laid end to end, equal ones once."""

    def __init__(self) -> None:
        self._by_id: dict[tuple[int, bool], int] = {}
        self._by_block: dict[int, int] = {}
        self._interned = Interned()
        self._blocks: list[IntArray] = []
        self._size = 0
        self._kept: list[IntArray] = []  # so that no id is used twice

    def add(self, array: IntArray, *, is_turned: bool = False, is_shared: bool = True) -> int:
        key = (id(array), is_turned)
        if not is_shared:
            self._blocks.append(np.ascontiguousarray(array.T if is_turned else array).ravel())
            self._size += array.size
            return self._size - array.size
        if key not in self._by_id:
            self._kept.append(array)
            block = self._interned.of(array.T if is_turned else array)
            if id(block) not in self._by_block:
                self._by_block[id(block)] = self._size
                self._blocks.append(block.ravel())
                self._size += block.size
            self._by_id[key] = self._by_block[id(block)]
        return self._by_id[key]

    def joined(self) -> IntArray:
        return np.concatenate(self._blocks) if self._blocks else np.zeros(1, dtype=np.int64)


def lay_out(problem: Problem, num_rows: int) -> Layout:
    """Flattens a problem whose times are row numbers.

    Args:
        problem: At most one edge a pair.
        num_rows: How many rows there are.
    """
    sizes = np.array([len(costs) for costs in problem.node_costs], dtype=np.int64)
    halves: list[list[tuple[int, int, bool]]] = [[] for _ in problem.node_costs]
    for e, edge in enumerate(problem.edges):
        halves[edge.u].append((edge.v, e, True))
        halves[edge.v].append((edge.u, e, False))
    flat = [half for of_node in halves for half in of_node]
    at_edge = {(e, is_turned): half for half, (_, e, is_turned) in enumerate(flat)}
    pool = _Pool()
    priced = {term.edge for term in problem.edge_memory}  # prices differ where costs are equal
    half_start = _starts([len(of_node) for of_node in halves])
    own = np.repeat(sizes, np.diff(half_start))
    graph = FlatGraph(
        node_start=_starts(sizes.tolist()),
        half_start=half_start,
        half_far=np.array([far for far, _, _ in flat], dtype=np.int64),
        half_twin=np.array([at_edge[e, not turned] for _, e, turned in flat], dtype=np.int64),
        half_message=_starts(own.tolist())[:-1].copy(),
        half_table=np.array(
            [
                pool.add(problem.edges[e].costs, is_turned=turned, is_shared=e not in priced)
                for _, e, turned in flat
            ],
            dtype=np.int64,
        ),
        tables=saturate(pool.joined()).astype(np.float64),
        costs=saturate(np.concatenate(problem.node_costs)).astype(np.float64),
        cap=float(FORBIDDEN),
    )
    edge_of_half = np.array([e for _, e, _ in flat], dtype=np.int64)
    return Layout(problem, graph, _lay_out_memory(problem, num_rows, at_edge), edge_of_half)


def _lay_out_memory(
    problem: Problem, num_rows: int, at_edge: Mapping[tuple[int, bool], int]
) -> FlatMemory:
    pool = _Pool()
    terms: list[list[tuple[int, int, int, int, int]]] = [[] for _ in problem.node_costs]
    alone: dict[tuple[int, int, int], IntArray] = {}
    for term in problem.node_memory:
        if term.start < term.stop and term.usage.any():
            key = (term.node, term.start, term.stop)
            alone[key] = alone[key] + term.usage if key in alone else term.usage
    for (node, start, stop), usage in alone.items():
        terms[node].append((start, stop, -1, -1, pool.add(usage)))
    for pair in problem.edge_memory:
        edge = problem.edges[pair.edge]
        if pair.start < pair.stop and pair.usage.any():
            for node, far, turned in ((edge.u, edge.v, True), (edge.v, edge.u, False)):
                usage_start = pool.add(pair.usage, is_turned=turned)
                half = at_edge[pair.edge, turned]
                terms[node].append((pair.start, pair.stop, half, far, usage_start))
    columns = np.array([t for of_node in terms for t in of_node], dtype=np.int64).reshape(-1, 5)
    columns = np.ascontiguousarray(columns.T)
    return FlatMemory(
        term_start=_starts([len(of_node) for of_node in terms]),
        first_row=columns[0],
        stop_row=columns[1],
        half=columns[2],
        far=columns[3],
        usage_start=columns[4],
        usages=pool.joined(),
        num_rows=num_rows,
        limit=2**62 if problem.memory_limit is None else problem.memory_limit,
    )


def _starts(sizes: list[int]) -> IntArray:
    return np.concatenate(([0], np.cumsum(np.array(sizes, dtype=np.int64)))).astype(np.int64)
