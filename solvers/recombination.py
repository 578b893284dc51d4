"""The best of what some answers took: a problem small enough for branch and cut.

Prices alone leap between answers that fit and answers that do not; the best ones in between take
some of either's choices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from solvers.engines.contained import Contained
from solvers.engines.mathopt_highs import MathOptHighs
from solvers.engines.protocol import Request
from solvers.errors import EngineError
from solvers.presolve import reduce_fully
from solvers.problem import IntArray, Problem
from solvers.restricted import restrict

MOST_COLUMNS = 100_000
"""Columns of the largest problem worth it."""

SolveReduced = Callable[[Problem, Request], Sequence[int] | None]
"""Looks for allowed choices of a reduced problem, from the answers, which are the hints."""


def branch_and_cut(problem: Problem, request: Request) -> Sequence[int] | None:
    """The best choices by HiGHS, or the best it has once time is up."""
    try:
        return Contained(MathOptHighs()).solve(problem, request).choices
    except EngineError:
        return None


def recombine(
    problem: Problem,
    answers: Sequence[IntArray],
    request: Request,
    solve: SolveReduced = branch_and_cut,
) -> IntArray | None:
    """Finds the cheapest allowed choices of which every one is in some answer.

    Args:
        problem: With a memory limit; times are row numbers.
        answers: int64[nodes] each; they need not fit.
        request: How long it may take, and how near the best the result shall be.
        solve: Solves what reductions leave.

    Returns:
        Choices; None where none are allowed, or the problem is still large, or time was short.
    """
    keep = [np.zeros(len(costs), dtype=bool) for costs in problem.node_costs]
    for answer in answers:
        for kept, choice in zip(keep, answer.tolist(), strict=True):
            kept[choice] = True
    restricted = restrict(problem, keep)
    reduced = reduce_fully(restricted.problem, is_over=request.is_over)
    if reduced.is_infeasible or request.is_over():
        return None
    if reduced.problem.num_columns > MOST_COLUMNS:
        return None
    choices: Sequence[int] | None = ()
    if reduced.problem.num_nodes:
        hints = tuple(reduced.reduce(restricted.reduce(answer.tolist())) for answer in answers)
        choices = solve(reduced.problem, request.for_part(reduced.constant, hints=hints))
    if choices is None:
        return None
    return np.array(restricted.restore(reduced.restore(choices)), dtype=np.int64)
