"""What moves make of answers at once: single nodes, parts of cheaper answers, the best of all.

Answers that fit with much to spare are dear, cheap ones do not fit: a good one takes from both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from solvers.engines.protocol import Request
from solvers.evaluate import Evaluation, evaluate
from solvers.few_rows import MOST_ROUNDS, ROWS_A_LOOK
from solvers.local_search import LocalSearch
from solvers.memory_rows import RowUse, at_times, compress_memory, rows_to_add
from solvers.problem import FORBIDDEN, IntArray, Problem
from solvers.recombination import recombine
from solvers.within_memory import solve_at_prices

Choices = tuple[int, ...]


def best_of_answers(
    problem: Problem, answers: Sequence[Choices], request: Request
) -> list[Choices]:
    """Makes the best answer of what answers took, where some fit; nothing else moves.

    Args:
        problem: With a memory limit.
        answers: Of which some fit.
        request: As for `moved_on`.

    Returns:
        At most one answer, which fits.
    """
    usable = _usable(problem, answers)
    if not any(found.is_allowed for found, _ in usable):
        return []
    compressed, times = compress_memory(problem)
    seen = [np.array(answer, dtype=np.int64) for _, answer in usable]
    best = _recombined(RowUse(compressed, len(times)), seen, request)
    return [] if best is None else [_as_choices(best)]


def moved_on(problem: Problem, answers: Sequence[Choices], request: Request) -> list[Choices]:
    """Makes better answers of those that fit.

    Args:
        problem: With a memory limit.
        answers: Of which some fit.
        request: Deadline, whether to return soon, and how near the best the result shall be.

    Returns:
        Answers that fit, at most as dear as those they were made of; none where none fits.
    """
    usable = sorted(_usable(problem, answers), key=lambda item: item[0].cost)
    fitting = [(found, answer) for found, answer in usable if found.is_allowed]
    if not fitting:
        return []
    compressed, times = compress_memory(problem)
    local = LocalSearch(compressed, len(times))
    leanest = min(fitting, key=lambda item: item[0].peak)[1]
    starts = dict.fromkeys((fitting[0][1], leanest))
    if not usable[0][0].is_allowed and not request.is_over():
        repaired = _as_choices(local.repaired(usable[0][1], deadline=request.deadline))
        if evaluate(problem, repaired).is_allowed:
            starts[repaired] = None
    moved = [_moved(local, start, [a for _, a in usable], request) for start in starts]
    seen = [np.array(answer, dtype=np.int64) for _, answer in usable]
    best = _recombined(RowUse(compressed, len(times)), [*seen, *moved], request)
    if best is not None:
        moved.append(local.improved(best, deadline=request.deadline))
    return [_as_choices(found) for found in moved]


def _recombined(use: RowUse, answers: Sequence[IntArray], request: Request) -> IntArray | None:
    """The best of what answers took, with the limit at rows where they, and it, would pass it.

    Args:
        use: Of a problem whose times are row numbers.
        answers: int64[nodes] each; they need not fit.
        request: As for `moved_on`.

    Returns:
        Choices that fit; None where none were found.
    """
    problem = use.problem
    limit = math.inf if problem.memory_limit is None else problem.memory_limit
    rows: list[int] = []
    passing = answers
    for _ in range(MOST_ROUNDS):
        for held in map(use.held, passing):
            rows = sorted({*rows, *rows_to_add(held, limit, rows, most=ROWS_A_LOOK)})
        found = recombine(at_times(problem, rows), answers, request, solve_at_prices)
        if found is None or use.held(found).max(initial=0) <= limit:
            return found
        passing = [found]
    return None


def _usable(problem: Problem, answers: Sequence[Choices]) -> list[tuple[Evaluation, Choices]]:
    """Different answers without a forbidden cost, over the memory limit or not, as given."""
    told = [(evaluate(problem, answer), answer) for answer in dict.fromkeys(answers)]
    return [(found, answer) for found, answer in told if found.cost < FORBIDDEN]


def _moved(
    local: LocalSearch, start: Choices, others: Sequence[Choices], request: Request
) -> IntArray:
    moved = np.array(start, dtype=np.int64)
    for other in (start, *others):
        if request.is_over():
            break
        blended = local.blended(moved, other, deadline=request.deadline)
        moved = local.improved(blended, deadline=request.deadline)
    return moved


def _as_choices(found: IntArray) -> Choices:
    return tuple(found.tolist())
