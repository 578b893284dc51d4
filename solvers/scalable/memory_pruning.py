"""Choices that cannot fit: what one takes, with the least of everything else, passes the limit."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from solvers.memory_rows import memory_terms
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
    for _ in range(_MOST_ROUNDS):
        slack = _slack(problem, keep, num_rows)
        if slack.min() < 0:
            return None
        tightest = _RangeLeast(slack)
        has_changed = False
        for term in problem.node_memory:
            if term.start == term.stop:
                continue
            usage = term.usage
            room = tightest.least(term.start, term.stop) + int(usage[keep[term.node]].min())
            if (usage[keep[term.node]] > room).any():
                keep[term.node] &= usage <= room
                has_changed = True
                if not keep[term.node].any():
                    return None
        if not has_changed:
            break
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
    slack = _slack(problem, [np.ones(len(c), dtype=bool) for c in problem.node_costs], num_rows)
    tightest = _RangeLeast(slack)
    found: dict[tuple[int, int], BoolArray] = {}
    _add_pair_terms(problem, tightest, found)
    joined = {(min(edge.u, edge.v), max(edge.u, edge.v)) for edge in problem.edges}
    worst: dict[tuple[int, int], float] = {}
    terms = [
        (int(term.usage.max() - term.usage.min()), term)
        for term in problem.node_memory
        if term.start < term.stop
    ]
    least_slack = int(slack.min())
    terms.sort(key=lambda item: -item[0])
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
    problem: Problem, tightest: _RangeLeast, found: dict[tuple[int, int], BoolArray]
) -> None:
    for term in problem.edge_memory:
        if term.start == term.stop:
            continue
        clash = term.usage - term.usage.min() > tightest.least(term.start, term.stop)
        if clash.any():
            edge = problem.edges[term.edge]
            key = (edge.u, edge.v) if edge.u < edge.v else (edge.v, edge.u)
            clash = clash if edge.u < edge.v else clash.T
            found[key] = found[key] | clash if key in found else clash


def _slack(problem: Problem, keep: list[BoolArray], num_rows: int) -> IntArray:
    """Returns int64[rows]: the limit less the least usages of all terms."""

    def least(term: NodeMemory | EdgeMemory) -> int:
        if isinstance(term, NodeMemory):
            return int(term.usage[keep[term.node]].min())
        edge = problem.edges[term.edge]
        return int(term.usage[np.ix_(keep[edge.u], keep[edge.v])].min())

    change = np.zeros(num_rows + 1, dtype=np.int64)
    for term in memory_terms(problem):
        held = least(term)
        change[term.start] += held
        change[term.stop] -= held
    return (problem.memory_limit or 0) - np.cumsum(change)[:-1]


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
