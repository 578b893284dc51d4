"""The referee: exact cost and peak memory of given choices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from solvers.errors import ProblemError
from solvers.flat import Flat
from solvers.problem import FORBIDDEN, IntArray, Problem


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What given choices cost and hold.

    Args:
        cost: Sum of the picked node and edge costs, exact even where forbidden ones are picked.
        peak: The most bytes held at one time; 0 where nothing is held.
        peak_time: The first time the peak is held; 0 where nothing is held.
        is_allowed: No forbidden cost is picked and no memory limit is passed at any time.
    """

    cost: int
    peak: int
    peak_time: int
    is_allowed: bool


def evaluate(problem: Problem, choices: Sequence[int]) -> Evaluation:
    """Adds up what `choices` cost and finds the peak of the memory they hold.

    Args:
        problem: A problem `verify_problem` finds no fault with.
        choices: One index per node.

    Raises:
        ProblemError: The number of choices is wrong or one is out of its node's range.
    """
    if len(choices) != problem.num_nodes:
        raise ProblemError(
            f"{len(choices)} choices given, expected one per node: {problem.num_nodes}",
            where="choices",
        )
    flat, chosen = Flat.of(problem), np.asarray(choices, dtype=np.int64)
    sizes = flat.costs.last_sizes
    outside = np.flatnonzero((chosen < 0) | (chosen >= sizes))
    if outside.size:
        node = int(outside[0])
        raise ProblemError(
            f"is {chosen[node]}, node {node} has {sizes[node]} choices", where=f"choices[{node}]"
        )
    paid = np.concatenate((flat.costs.at(chosen), flat.tables.at(flat.pairs(chosen))))
    peak, peak_time, fits = _peak(problem, flat, flat.held(chosen))
    has_forbidden = bool((paid >= FORBIDDEN).any())
    return Evaluation(_exact_sum(paid), peak, peak_time, fits and not has_forbidden)


def _exact_sum(numbers: IntArray) -> int:
    """The sum in Python's integers, of two halves that each fit 64 bits."""
    return (int((numbers >> 32).sum()) << 32) + int((numbers & 0xFFFFFFFF).sum())


def _peak(problem: Problem, flat: Flat, usage: IntArray) -> tuple[int, int, bool]:
    """The most bytes held, when first, and whether the limits allow all that is held."""
    times, held = flat.changes[0], flat.use(usage)
    at = int(held.argmax()) if held.size else 0
    peak = int(held[at]) if held.size else 0
    fits = problem.memory_limit is None or peak <= problem.memory_limit
    for limit in problem.memory_limits:
        first = np.searchsorted(times, limit.start, side="right") - 1  # what is held as it begins
        last = np.searchsorted(times, limit.stop) if limit.start < limit.stop else 0
        fits = fits and int(held[max(first, 0) : last].max(initial=0)) <= limit.limit
    return peak, int(times[at]) if peak else 0, fits
