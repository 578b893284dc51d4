"""Choices that cannot fit: what one takes, with the least of everything else, passes the limit."""

from __future__ import annotations

from collections.abc import Sequence, Set

import numpy as np
import numpy.typing as npt

from solvers.problem import EdgeMemory, IntArray, NodeMemory, Problem

BoolArray = npt.NDArray[np.bool_]

MOST_CONFLICTS = 60
"""Edges added for pairs of nodes that have none; each is one more table to pass messages over."""

_MOST_LARGE_TERMS = 200
_MOST_ROUNDS = 20


def fitting_choices(problem: Problem, num_rows: int) -> list[BoolArray] | None:
    """Finds the choices that may be part of an answer that fits, to a fixed point.

    Formula: choice s of a node goes if at some row its usage, and the least usages of all other
    terms there, add up to more than the limit.

    Args:
        problem: Times are row numbers.
        num_rows: How many rows there are.

    Returns:
        bool[num_choices] per node; None where a node is left without any.
    """
    keep = [np.ones(len(costs), dtype=bool) for costs in problem.node_costs]
    if problem.memory_limit is None or not num_rows:
        return keep
    terms = _Terms(problem)
    for _ in range(_MOST_ROUNDS):
        slack = terms.slack(num_rows)
        if slack.min() < 0:
            return None
        room = _RangeLeast(slack).least_each(terms.starts, terms.stops) + terms.least
        too_large = np.flatnonzero(terms.most > room)
        too_large = too_large[too_large < terms.num_of_nodes]
        if not too_large.size:
            break
        changed = set()
        for t in too_large.tolist():
            term = terms.of_node(t)
            keep[term.node] &= term.usage <= room[t]
            if not keep[term.node].any():
                return None
            changed.add(term.node)
        terms.keep_only(keep, changed)
    return keep


def conflicts(problem: Problem, num_rows: int) -> dict[tuple[int, int], BoolArray]:
    """Finds pairs of choices that cannot be together in an answer that fits.

    Formula: choices s of u and t of v clash if at some row what they take above the least of their
    terms, node terms and that of a pair term between them, passes what the least of all leaves.

    Args:
        problem: Times are row numbers; no choice alone passes the limit.
        num_rows: How many rows there are.

    Returns:
        bool[num_choices_u, num_choices_v] by (u, v), u < v, true where they clash; only pairs of
        nodes with a clash, at most `MOST_CONFLICTS` of those without an edge, worst first.
    """
    if problem.memory_limit is None or not num_rows:
        return {}
    all_terms = _Terms(problem)
    slack = all_terms.slack(num_rows)
    tightest = _RangeLeast(slack)
    found: dict[tuple[int, int], BoolArray] = {}
    _add_pair_terms(problem, all_terms, tightest, found)
    joined = {(min(edge.u, edge.v), max(edge.u, edge.v)) for edge in problem.edges}
    worst: dict[tuple[int, int], float] = {}
    num = all_terms.num_of_nodes
    spreads = all_terms.most[:num] - all_terms.least[:num]
    largest = np.argsort(-spreads, kind="stable")[: _MOST_LARGE_TERMS + 1].tolist()
    terms = [(int(spreads[t]), all_terms.of_node(t)) for t in largest]
    least_slack = int(slack.min())
    for i, (most, term) in enumerate(terms):
        if i == _MOST_LARGE_TERMS or 2 * most <= least_slack:
            break
        for other_most, other in terms[:i]:
            start, stop = max(term.start, other.start), min(term.stop, other.stop)
            if start >= stop or term.node == other.node:
                continue
            room = tightest.least(start, stop)
            if most + other_most <= room:
                continue
            pair = (other, term) if other.node < term.node else (term, other)
            above = [one.usage - one.usage.min() for one in pair]
            clash = above[0][:, None] + above[1] > room
            key = (pair[0].node, pair[1].node)
            found[key] = found[key] | clash if key in found else clash
            if key not in joined:
                worst[key] = max(worst.get(key, 0.0), float(clash.mean()))
    for key in sorted(worst, key=lambda key: (-worst[key], key))[MOST_CONFLICTS:]:
        del found[key]
    return found


def _add_pair_terms(
    problem: Problem,
    terms: _Terms,
    tightest: _RangeLeast,
    found: dict[tuple[int, int], BoolArray],
) -> None:
    room = tightest.least_each(terms.starts, terms.stops)
    clashing = np.flatnonzero(terms.most - terms.least > room)
    for t in clashing[clashing >= terms.num_of_nodes].tolist():
        term = terms.of_pair(t)
        clash = term.usage - term.usage.min() > room[t]
        edge = problem.edges[term.edge]
        key = (edge.u, edge.v) if edge.u < edge.v else (edge.v, edge.u)
        clash = clash if edge.u < edge.v else clash.T
        found[key] = found[key] | clash if key in found else clash


class _Terms:
    """Terms that live at some row, those of nodes first, with the least and most each may hold.

    Attributes:
        starts: int64[terms]: first rows.
        stops: int64[terms]: rows behind the last ones.
        least: int64[terms].
        most: int64[terms].
        num_of_nodes: How many are of nodes.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._of_nodes = [term for term in problem.node_memory if term.start < term.stop]
        self._of_pairs = [term for term in problem.edge_memory if term.start < term.stop]
        self.num_of_nodes = len(self._of_nodes)
        terms: list[NodeMemory | EdgeMemory] = [*self._of_nodes, *self._of_pairs]
        self.starts = np.array([term.start for term in terms], dtype=np.int64)
        self.stops = np.array([term.stop for term in terms], dtype=np.int64)
        bounds = {id(t.usage): (int(t.usage.min()), int(t.usage.max())) for t in terms}
        pairs = np.array([bounds[id(t.usage)] for t in terms], dtype=np.int64).reshape(-1, 2)
        self.least, self.most = pairs[:, 0].copy(), pairs[:, 1].copy()

    def of_node(self, t: int) -> NodeMemory:
        return self._of_nodes[t]

    def of_pair(self, t: int) -> EdgeMemory:
        return self._of_pairs[t - self.num_of_nodes]

    def keep_only(self, keep: Sequence[BoolArray], nodes: Set[int]) -> None:
        """Brings least and most up to date where choices of some nodes went."""
        for t, term in enumerate(self._of_nodes):
            if term.node in nodes:
                self._set(t, term.usage[keep[term.node]])
        for t, pair in enumerate(self._of_pairs, start=self.num_of_nodes):
            edge = self._problem.edges[pair.edge]
            if edge.u in nodes or edge.v in nodes:
                self._set(t, pair.usage[np.ix_(keep[edge.u], keep[edge.v])])

    def _set(self, t: int, usage: IntArray) -> None:
        self.least[t], self.most[t] = usage.min(), usage.max()

    def slack(self, num_rows: int) -> IntArray:
        """Returns int64[rows]: the limit less the least of all terms."""
        change = np.zeros(num_rows + 1, dtype=np.int64)
        np.add.at(change, self.starts, self.least)
        np.subtract.at(change, self.stops, self.least)
        slack: IntArray = (self._problem.memory_limit or 0) - np.cumsum(change)[:-1]
        return slack


class _RangeLeast:
    """Least values over ranges, from tables of powers of two."""

    def __init__(self, values: IntArray) -> None:
        self._levels = [values]
        width = 1
        while 2 * width <= len(values):
            last = self._levels[-1]
            self._levels.append(np.minimum(last[:-width], last[width:]))
            width *= 2

    def least(self, start: int, stop: int) -> int:
        level = (stop - start).bit_length() - 1
        values = self._levels[level]
        return int(min(values[start], values[stop - (1 << level)]))

    def least_each(self, starts: IntArray, stops: IntArray) -> IntArray:
        """Returns int64[ranges]."""
        found = np.empty(len(starts), dtype=np.int64)
        for level, values in enumerate(self._levels):
            lengths = stops - starts
            at = np.flatnonzero((lengths >= 1 << level) & (lengths < 2 << level))
            found[at] = np.minimum(values[starts[at]], values[stops[at] - (1 << level)])
        return found
