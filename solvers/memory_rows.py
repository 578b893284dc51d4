"""Memory rows: the few times at which the memory limit can bind, and use at each of them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from solvers.flat import Flat, use_between
from solvers.problem import EdgeMemory, IntArray, NodeMemory, Problem


def memory_terms(problem: Problem) -> list[NodeMemory | EdgeMemory]:
    """Returns all terms, those of nodes first."""
    return [*problem.node_memory, *problem.edge_memory]


def compress_memory(problem: Problem) -> tuple[Problem, tuple[int, ...]]:
    """Replaces time by row numbers, with a row only for each time at which the limit can bind.

    The terms live at a time that is not *maximal* (something stops before anything else starts)
    are among those live at a maximal one. A maximal time at which even the largest usages fit is
    left out too, and so are terms live at no row.

    Returns:
        The problem in row numbers (no limit where no row is left), and a time for every row.
    """
    flat = Flat.of(problem)
    is_held = flat.starts < flat.stops
    without = replace(problem, node_memory=(), edge_memory=(), memory_limit=None)
    if problem.memory_limit is None or not is_held.any():
        return without, ()
    starts, stops = flat.starts[is_held], flat.stops[is_held]
    times = np.unique(starts)
    all_stops = np.unique(stops)
    until = np.append(times[1:], np.iinfo(np.int64).max)
    first_stop = all_stops[np.searchsorted(all_stops, times, side="right")]
    times = times[first_stop <= until]
    firsts, lasts = np.searchsorted(times, starts), np.searchsorted(times, stops)
    largest_use = use_between(firsts, lasts, _most(flat)[is_held], len(times))
    times = times[largest_use > problem.memory_limit]
    if not times.size:
        return without, ()
    return at_times(problem, times.tolist()), tuple(times.tolist())


def at_times(problem: Problem, times: Sequence[int]) -> Problem:
    """The same problem with memory looked at in some ascending times only, now called 0, 1, ...

    What fits the original fits this one.
    """
    flat = Flat.of(problem)
    firsts, lasts = np.searchsorted(times, flat.starts), np.searchsorted(times, flat.stops)
    node_memory: list[NodeMemory] = []
    edge_memory: list[EdgeMemory] = []
    for place in np.flatnonzero(firsts < lasts).tolist():
        term, first, last = flat.terms[place], int(firsts[place]), int(lasts[place])
        if isinstance(term, NodeMemory):
            node_memory.append(NodeMemory(term.node, first, last, term.usage))
        else:
            edge_memory.append(EdgeMemory(term.edge, first, last, term.usage))
    return replace(problem, node_memory=tuple(node_memory), edge_memory=tuple(edge_memory))


def least_use(problem: Problem) -> tuple[int, int]:
    """Returns a bound on every peak, and when: the most the least usages add up to at one time."""
    flat = Flat.of(problem)
    held = flat.use(flat.usages.of_each(lambda usage: int(usage.min())))
    if not held.size:
        return 0, 0
    at = int(held.argmax())
    return int(held[at]), int(flat.changes[0][at])


def most_use(problem: Problem) -> int:
    """Returns what no peak is above: the most the largest usages add up to at one time."""
    flat = Flat.of(problem)
    return int(flat.use(_most(flat)).max(initial=0))


def _most(flat: Flat) -> IntArray:
    """Returns int64[terms]: the most each may hold."""
    return flat.usages.of_each(lambda usage: int(usage.max()))


def violated_times(problem: Problem, choices: Sequence[int]) -> tuple[int, ...]:
    """Returns at most eight times at which choices hold more than the limit, one for each bump.

    The worst comes first.

    Args:
        problem: With a memory limit.
        choices: One per node.
    """
    compressed, times = compress_memory(problem)
    if compressed.memory_limit is None:
        return ()
    held = RowUse(compressed, len(times)).held(choices)
    return tuple(times[row] for row in rows_to_add(held, compressed.memory_limit, (), most=8))


class RowUse:
    """Use at every row of a problem whose times are row numbers, for given choices.

    Args:
        problem: As `compress_memory` returns it.
        num_rows: How many rows there are.
    """

    def __init__(self, problem: Problem, num_rows: int) -> None:
        self.problem = problem
        self.num_rows = num_rows
        self.limit = problem.memory_limit

    def held(self, choices: Sequence[int] | IntArray) -> IntArray:
        """Returns int64[rows]: bytes held at each row."""
        flat = Flat.of(self.problem)
        held = flat.held(np.asarray(choices, dtype=np.int64))
        return use_between(flat.starts, flat.stops, held, self.num_rows)


def price(usage: IntArray, weight: float) -> IntArray:
    """Returns ``floor(weight * usage)`` or a little less, never more: bounds stay bounds.

    The little less makes up for the rounding of `weight`, a sum of up to hundreds of prices.
    """
    return np.asarray(np.floor(usage * (weight * (1 - 2.0**-44))), dtype=np.int64)


def priced(
    problem: Problem, price_by_row: Mapping[int, float], num_rows: int
) -> tuple[dict[int, IntArray], dict[int, IntArray]]:
    """What the usages cost at given prices per byte and row.

    Returns:
        Additional costs by node and by edge; those that would add nothing are left out.
    """
    weights = np.zeros(num_rows)
    for row, per_byte in price_by_row.items():
        weights[row] = per_byte
    num_priced_before = np.concatenate(([0], np.cumsum(weights > 0)))
    cache: dict[tuple[int, float], IntArray] = {}
    sums: dict[tuple[int, int], tuple[IntArray, IntArray, IntArray]] = {}

    def plus(present: IntArray | None, costs: IntArray) -> IntArray:
        """Adds; sums of the same arrays are one array, kept with them so that identity holds."""
        if present is None:
            return costs
        key = (id(present), id(costs))
        if key not in sums:
            sums[key] = (present, costs, present + costs)
        return sums[key][2]

    def by_owner(terms: Iterable[tuple[int, NodeMemory | EdgeMemory]]) -> dict[int, IntArray]:
        summed: defaultdict[tuple[int, int], list[float]] = defaultdict(list)
        usages: dict[int, IntArray] = {}
        for owner, term in terms:
            if num_priced_before[term.stop] > num_priced_before[term.start]:
                usages[id(term.usage)] = term.usage
                weight = float(weights[term.start : term.stop].sum())
                summed[owner, id(term.usage)].append(weight)
        found: dict[int, IntArray] = {}
        for (owner, usage), of_terms in summed.items():
            key = (usage, math.fsum(of_terms))
            if key not in cache:
                cache[key] = price(usages[usage], key[1])
            found[owner] = plus(found.get(owner), cache[key])
        return found

    return (
        by_owner((term.node, term) for term in problem.node_memory),
        by_owner((term.edge, term) for term in problem.edge_memory),
    )


def rows_to_add(
    held: IntArray, limit: float, present: Sequence[int], *, most: int = 4
) -> list[int]:
    """Picks violated rows that are worst among their neighbours, worst first.

    Args:
        held: int64[rows]: use at each row.
        limit: Allowed use.
        present: Rows already there.
        most: How many to pick.
    """
    excess = held - limit
    excess[list(present)] = 0
    before = np.concatenate(([0], excess[:-1]))
    after = np.concatenate((excess[1:], [0]))
    peaks = np.flatnonzero((excess > 0) & (excess >= before) & (excess > after))
    if not peaks.size:
        peaks = np.flatnonzero(excess > 0)
    worst_first = peaks[np.argsort(-excess[peaks], kind="stable")]
    return [int(row) for row in worst_first[:most]]


def num_rows_of(problem: Problem) -> int:
    """Returns how many rows a problem in row numbers has, up to the last one used."""
    return max((term.stop for term in memory_terms(problem)), default=0)
