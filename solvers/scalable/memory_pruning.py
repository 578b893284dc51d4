"""Pairs of choices that cannot fit together: with the least of all else they pass the limit."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from solvers.presolve.fitting import LiveTerms, RangeLeast
from solvers.problem import Problem

BoolArray = npt.NDArray[np.bool_]

MOST_CONFLICTS = 60
"""Edges added for pairs of nodes that have none; each is one more table to pass messages over."""

_MOST_LARGE_TERMS = 200


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
    all_terms = LiveTerms(problem)
    slack = all_terms.slack(num_rows)
    tightest = RangeLeast(slack)
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
    terms: LiveTerms,
    tightest: RangeLeast,
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
