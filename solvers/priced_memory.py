"""A problem whose choices pay for the memory they hold, in the place of a limit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from solvers.memory_rows import at_times, priced
from solvers.problem import FORBIDDEN, Edge, IntArray, Problem
from solvers.saturating import FORBIDDEN_FROM, as_valid


def with_priced_memory(problem: Problem, price_by_time: Mapping[int, float]) -> Problem:
    """The problem without memory, whose costs hold what memory costs at some times.

    At the prices that prove a bound (`Result.memory_prices`) its best choices are near those of the
    problem itself, and are found as fast as without a limit; they need not fit.

    Args:
        problem: With a memory limit.
        price_by_time: Cost of a byte held at a time; other times are free.
    """
    times = sorted(price_by_time)
    by_row = {row: price_by_time[at] for row, at in enumerate(times)}
    by_node, by_edge = priced(at_times(problem, times), by_row, len(times))
    sums: dict[tuple[int, int], IntArray] = {}

    def plus(costs: IntArray, more: IntArray | None) -> IntArray:
        """Adds; sums of the same arrays are one array."""
        if more is None:
            return costs
        key = (id(costs), id(more))
        if key not in sums:
            sums[key] = as_valid(np.where(costs >= FORBIDDEN_FROM, FORBIDDEN, costs + more))
        return sums[key]

    return replace(
        problem,
        node_costs=tuple(plus(own, by_node.get(n)) for n, own in enumerate(problem.node_costs)),
        edges=tuple(
            Edge(edge.u, edge.v, plus(edge.costs, by_edge.get(e)))
            for e, edge in enumerate(problem.edges)
        ),
        node_memory=(),
        edge_memory=(),
        memory_limit=None,
    )
