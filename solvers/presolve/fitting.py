"""Choices that cannot fit: what one takes, with the least of everything else, passes the limit."""

from __future__ import annotations

from collections.abc import Sequence, Set

import numpy as np
import numpy.typing as npt

from solvers.flat import Flat, use_between
from solvers.memory_rows import num_rows_of
from solvers.problem import EdgeMemory, IntArray, NodeMemory, Problem
from solvers.restricted import Restricted, restrict

BoolArray = npt.NDArray[np.bool_]

WORTH_DROPPING = 0.98
"""Choices are dropped where that leaves at most this share of the columns: presolve starts anew."""

_MOST_ROUNDS = 20


def drop_unfitting(problem: Problem) -> Restricted | None:
    """Takes out the choices that cannot fit.

    Answers that fit are kept, all of them; the smallest peak is not, where nothing fits.

    Args:
        problem: Times are row numbers.

    Returns:
        None where too little goes, and where nothing fits: that is for a search to prove, which can
        also say how much memory it would take.
    """
    keep = fitting_choices(problem, num_rows_of(problem))
    if keep is None or all(kept.all() for kept in keep):
        return None
    restricted = restrict(problem, keep)
    is_worth_it = restricted.problem.num_columns <= WORTH_DROPPING * problem.num_columns
    return restricted if is_worth_it else None


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
    terms = LiveTerms(problem)
    for _ in range(_MOST_ROUNDS):
        slack = terms.slack(num_rows)
        if slack.min() < 0:
            return None
        room = RangeLeast(slack).least_each(terms.starts, terms.stops) + terms.least
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


class LiveTerms:
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
        flat = Flat.of(problem)
        is_held = flat.starts < flat.stops
        self.starts, self.stops = flat.starts[is_held], flat.stops[is_held]
        self.least = flat.usages.of_each(lambda usage: int(usage.min()))[is_held]
        self.most = flat.usages.of_each(lambda usage: int(usage.max()))[is_held]

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
        least = use_between(self.starts, self.stops, self.least, num_rows)
        return (self._problem.memory_limit or 0) - least


class RangeLeast:
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
