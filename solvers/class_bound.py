"""A lower bound from one copy of each repeated part: messages that all copies share.

Whatever costs are moved between nodes and edges, the sum of all least costs is a bound. Copies that
get the same messages have the same least costs, so these are found once and counted as often as
there are copies: the work is that of a problem with one node a class.

Source: Mladenov, Ahmadi and Kersting (2012), lifted linear programming: the relaxation of a problem
with such classes has a best solution that is the same for all copies.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from solvers.dual_ascent import CAP, LARGEST_TOTAL
from solvers.kernels import FloatArray, compiled, compiled_part, least_by_column
from solvers.presolve.alike import Alike, distinct_rows, ends_of
from solvers.problem import FORBIDDEN, IntArray, Problem
from solvers.saturating import FORBIDDEN_FROM, saturate


class ClassGraph(NamedTuple):
    """A problem by classes, in flat arrays; costs and messages are those of one copy.

    Args:
        choice_start: int64[classes + 1]: first choice of each class.
        copies: float64[classes].
        end_start: int64[classes + 1]: first end of each class.
        end_class: int64[ends].
        end_times: float64[ends]: how many such ends each copy has.
        message_start: int64[ends + 1]: first message entry, one entry per own choice.
        link_start: int64[ends + 1]: first link of each end: one for each kind of end at the other
            ends of its edges.
        link_end: int64[links]: the other end.
        link_table: int64[links]: first entry in `tables`; the other end has the rows.
        tables: float32[entries], half the bytes to go through: the proof is in integers.
        cap: A cost above that of any allowed answer; stands for forbidden.
    """

    choice_start: IntArray
    copies: FloatArray
    end_start: IntArray
    end_class: IntArray
    end_times: FloatArray
    message_start: IntArray
    link_start: IntArray
    link_end: IntArray
    link_table: IntArray
    tables: npt.NDArray[np.float32]
    cap: float


@compiled_part
def _leads(graph: ClassGraph, end: int, own: int, is_backward: bool) -> tuple[bool, bool]:
    """Whether an end leads to classes visited earlier, and later; both where to its own class."""
    is_earlier = False
    is_later = False
    for link in range(graph.link_start[end], graph.link_start[end + 1]):
        far = graph.end_class[graph.link_end[link]]
        is_before = far > own if is_backward else far < own
        is_earlier |= is_before or far == own
        is_later |= not is_before
    return is_earlier, is_later


@compiled
def ascend_classes(
    graph: ClassGraph,
    is_backward: bool,
    slack: FloatArray,
    messages: FloatArray,
    bound: float,
    fresh: FloatArray,
    least: FloatArray,
) -> float:
    """Visits the classes in order; each gathers what lies behind it and hands on what it has.

    As `solvers.kernels.ascend`, for all copies of a class at once. Edges within a class are
    gathered from and handed on to.

    Args:
        graph: The problem.
        is_backward: Last class first.
        slack: float64[choices]: what each choice still costs beyond the bound; updated.
        messages: float64[message entries]: what each end gave to its own class; updated.
        bound: Before the pass.
        fresh: float64[most choices]: scratch.
        least: float64[most choices]: scratch.

    Returns:
        The bound after the pass.
    """
    num_classes = len(graph.choice_start) - 1
    for visit in range(num_classes):
        one = num_classes - 1 - visit if is_backward else visit
        start, stop = graph.choice_start[one], graph.choice_start[one + 1]
        own = slack[start:stop]
        num_choices = stop - start
        num_earlier = 0.0
        num_later = 0.0
        for end in range(graph.end_start[one], graph.end_start[one + 1]):
            is_earlier, is_later = _leads(graph, end, one, is_backward)
            times = graph.end_times[end]
            num_later += times * is_later
            if not is_earlier:
                continue
            num_earlier += times
            given = messages[graph.message_start[end] : graph.message_start[end + 1]]
            for y in range(num_choices):
                fresh[y] = np.inf
            for link in range(graph.link_start[end], graph.link_start[end + 1]):
                other = graph.link_end[link]
                far_given = messages[graph.message_start[other] : graph.message_start[other + 1]]
                gathered = least[:num_choices]
                least_by_column(graph.tables, graph.link_table[link], far_given, -1.0, gathered)
                for y in range(num_choices):
                    fresh[y] = min(fresh[y], gathered[y])
            for y in range(num_choices):
                own[y] = min(own[y] + times * (fresh[y] - given[y]), graph.cap)
                given[y] = fresh[y]
        lowest = own[0]
        for y in range(num_choices):
            lowest = min(lowest, own[y])
        bound += graph.copies[one] * lowest
        share = 1.0 / max(num_earlier, num_later, 1.0)
        for y in range(num_choices):
            own[y] -= lowest
            fresh[y] = np.floor(own[y] * share)
            own[y] -= num_later * fresh[y]
        for end in range(graph.end_start[one], graph.end_start[one + 1]):
            if _leads(graph, end, one, is_backward)[1]:
                first = graph.message_start[end]
                for y in range(num_choices):
                    messages[first + y] -= fresh[y]
    return bound


@dataclass(frozen=True, slots=True, eq=False)
class _Ends:
    """Ends of edges by class, table, side and the class at the other end, and the edges between.

    Args:
        class_of: int64[ends].
        times: int64[ends]: how many each copy of the class has.
        pairs: int64[kinds of edges, 2]: an end each.
        edges: int64[kinds of edges]: one edge of the kind.
        counts: int64[kinds of edges]: how many there are.
    """

    class_of: IntArray
    times: IntArray
    pairs: IntArray
    edges: IntArray
    counts: IntArray

    @staticmethod
    def of(problem: Problem, found: Alike, copies: IntArray) -> _Ends:
        nodes = ends_of(problem)
        far = nodes.reshape(-1, 2)[:, ::-1].ravel()
        sides = np.repeat(2 * found.tables, 2) + np.arange(len(nodes)) % 2
        keys = np.stack((found.class_of[nodes], sides, found.coarser[far]), axis=1)
        first, end_of, num_ends = distinct_rows(keys)
        class_of, by_edge = keys[first, 0], end_of.reshape(-1, 2)
        times = num_ends // copies[class_of]
        _require_equal_copies(nodes, end_of, times, copies[class_of])
        edges, _, counts = distinct_rows(by_edge)
        return _Ends(class_of, times, by_edge[edges], edges, counts)


def _require_equal_copies(
    nodes: IntArray, end_of: IntArray, times: IntArray, copies: IntArray
) -> None:
    """Refuses a copy that has an end more or less often than others: the bound rests on it."""
    _, first, count = np.unique(nodes * len(times) + end_of, return_index=True, return_counts=True)
    of_node = end_of[first]
    assert (count == times[of_node]).all()
    assert (np.bincount(of_node, minlength=len(times)) == copies).all()


class ClassBound:
    """Raises a bound on a problem, class by class.

    Memory terms of the problem are ignored: the bound holds with them too.

    Args:
        problem: A problem `verify_problem` finds no fault with.
        found: Its classes.
    """

    def __init__(self, problem: Problem, found: Alike) -> None:
        _, first, copies = np.unique(found.class_of, return_index=True, return_counts=True)
        self._copies = copies
        self._costs = [saturate(problem.node_costs[node]) for node in first]
        self._ends = _Ends.of(problem, found, copies)
        self._table_numbers = found.tables[self._ends.edges].tolist()
        edge_of = dict(zip(self._table_numbers, self._ends.edges.tolist(), strict=True))
        tables = {number: saturate(problem.edges[edge].costs) for number, edge in edge_of.items()}
        self._tables = [tables[number] for number in self._table_numbers]
        largest = {number: _largest_allowed(table) for number, table in tables.items()}
        paid = (
            *map(_largest_allowed, self._costs),
            *map(largest.__getitem__, self._table_numbers),
        )
        counts = (*copies.tolist(), *self._ends.counts.tolist())
        total = max(1, sum(map(mul, counts, paid)))
        self._shift = max(0, math.ceil(math.log2(total / LARGEST_TOTAL)))
        self._graph = self._laid_out()
        self._slack = np.concatenate([self._scaled(costs) for costs in self._costs])
        self._messages = np.zeros(int(self._graph.message_start[-1]))
        self._scratch = np.zeros((2, max(map(len, self._costs))))
        self._constant = 0.0
        self._is_backward = True

    def _laid_out(self) -> ClassGraph:
        ends = self._ends
        sizes = np.array([len(costs) for costs in self._costs], dtype=np.int64)
        blocks: list[npt.NDArray[np.float32]] = []
        start: dict[tuple[int, bool], int] = {}
        links: list[list[tuple[int, int]]] = [[] for _ in ends.class_of]
        size = 0
        for (u, v), number, table in zip(
            ends.pairs.tolist(), self._table_numbers, self._tables, strict=True
        ):
            for end, other, is_turned in ((u, v, True), (v, u, False)):
                if (number, is_turned) not in start:
                    start[number, is_turned] = size
                    block = self._scaled(table.T if is_turned else table)
                    blocks.append(block.astype(np.float32).ravel())
                    size += table.size
                links[end].append((other, start[number, is_turned]))
        flat = np.array([link for of_end in links for link in of_end], dtype=np.int64)
        return ClassGraph(
            choice_start=_starts(sizes),
            copies=self._copies.astype(np.float64),
            end_start=np.searchsorted(ends.class_of, np.arange(len(sizes) + 1)),
            end_class=ends.class_of,
            end_times=ends.times.astype(np.float64),
            message_start=_starts(sizes[ends.class_of]),
            link_start=_starts([len(of_end) for of_end in links]),
            link_end=flat.reshape(-1, 2)[:, 0].copy(),
            link_table=flat.reshape(-1, 2)[:, 1].copy(),
            tables=np.concatenate(blocks) if blocks else np.empty(0, np.float32),
            cap=CAP,
        )

    def _scaled(self, costs: IntArray) -> FloatArray:
        """Halves costs (rounding down) until doubles add them exactly."""
        halved = np.ascontiguousarray(costs >> self._shift).astype(np.float64)
        halved[costs >= FORBIDDEN_FROM] = CAP
        return halved

    def sweep(self, count: int = 1) -> int:
        """Passes over all classes there and back, `count` times; returns the bound, not proven."""
        fresh, least = self._scratch
        for _ in range(2 * count):
            self._is_backward = not self._is_backward
            self._constant = ascend_classes(
                self._graph,
                self._is_backward,
                self._slack,
                self._messages,
                self._constant,
                fresh,
                least,
            )
        return int(self._constant) << self._shift

    def proven(self) -> int:
        """The bound added up from the original costs and the messages, in integers.

        Formula: ``sum_c copies_c min(cost_c + sum_e times_e m_e) + sum_uv count_uv min(cost_uv -
        m_u - m_v)``, a bound whatever the messages are.
        """
        ends, starts = self._ends, self._graph.message_start
        messages: Any = np.ldexp(self._messages, self._shift)
        if np.abs(messages).max(initial=0.0) * (float(ends.times.sum()) + 2) < 2.0**61:
            messages = messages.astype(np.int64)
        else:  # Sums may not fit 64 bits: use Python's integers.
            messages = np.array([int(message) for message in messages], dtype=object)
        of_end = [messages[start:stop] for start, stop in itertools.pairwise(starts.tolist())]
        given: list[Any] = [costs.astype(messages.dtype) for costs in self._costs]
        for end, (one, times) in enumerate(
            zip(ends.class_of.tolist(), ends.times.tolist(), strict=True)
        ):
            given[one] = given[one] + times * of_end[end]
        bound = 0
        for count, costs, left in zip(self._copies.tolist(), self._costs, given, strict=True):
            bound += count * _least_allowed(costs, left)
        for count, (u, v), table in zip(
            ends.counts.tolist(), ends.pairs.tolist(), self._tables, strict=True
        ):
            bound += count * _least_allowed(table, table - of_end[u][:, None] - of_end[v])
        return bound


def _least_allowed(costs: IntArray, left: Any) -> int:
    """The least of what is left of costs, where these are allowed."""
    allowed = left[costs < FORBIDDEN_FROM]
    return int(allowed.min()) if allowed.size else FORBIDDEN


def _largest_allowed(costs: IntArray) -> int:
    return int(costs[costs < FORBIDDEN_FROM].max(initial=0))


def _starts(sizes: Sequence[int] | IntArray) -> IntArray:
    return np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
