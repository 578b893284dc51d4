"""Repeated parts once: the answer in which copies choose alike, and a bound on all answers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from solvers.class_bound import ClassBound
from solvers.memory_rows import least_use
from solvers.presolve import Tied, tie
from solvers.presolve.alike import Alike, alike
from solvers.priced_memory import with_priced_memory
from solvers.problem import Problem
from solvers.result import Progress
from solvers.run import Run

ROUNDS = 10
"""How far nodes must look alike, in edges: as far as what tells weights of one layer apart, and so
far the first and last layers choose for themselves. A choice: of 8 layers of Llama ties over 3, 6
and 10 edges cost 1.9, 1.2 and 0.1 %, over 14 as little as over 10 (2026-11-25)."""

WORTH_TYING = 0.5
"""Copies are tied where that leaves at most this share of the columns."""

LEAST_COLUMNS = 10_000
"""Smaller problems are as soon solved whole. A choice."""

SHARE_TIED = 0.5
"""Of the time left: how long to look for answers in which copies choose alike before others."""

SWEEPS_A_LOOK, MOST_LOOKS = 8, 32
HARDLY_RISING = 0.05
"""The bound is raised until so many sweeps raise it by less than this share of the gap allowed."""


@dataclass(frozen=True, slots=True, eq=False)
class Classes:
    """A problem with much fewer classes of copies than nodes."""

    found: Alike
    tied: Tied

    @staticmethod
    def of(problem: Problem) -> Classes | None:
        """Returns the classes of a problem; None where tying copies leaves too much of it."""
        if problem.num_columns < LEAST_COLUMNS:
            return None
        found = alike(problem, ROUNDS)
        if found.num_classes > WORTH_TYING * problem.num_nodes:
            return None
        tied = tie(problem, found)
        if tied.problem.num_columns > WORTH_TYING * problem.num_columns:
            return None
        return Classes(found, tied)


def solve_by_class(
    run: Run, solve_tied: Callable[[Run], None], *, tied_alone: bool, is_all: bool = False
) -> bool:
    """Takes over the best answer in which copies choose alike, and a bound on all answers.

    Args:
        run: Of the whole problem.
        solve_tied: Solves the problem with one node a class.
        tied_alone: No other answers are asked for; the bound is on these.
        is_all: No other search follows: this one takes all of the time.

    Returns:
        False where there are no such classes.
    """
    limit, (least, at) = run.problem.memory_limit, least_use(run.problem)
    fits_nothing = limit is not None and limit < least
    with run.stage("classes"):
        classes = Classes.of(run.problem)
        if classes is None:
            return False
        if fits_nothing:
            run.is_infeasible = True
            run.least_peak_bound, run.clashing_times = least, (at,)
        elif not tied_alone and not run.lower_bound:
            run.bound_without_limit = _bound(run, run.problem, classes.found)
            run.lower_bound = run.bound_without_limit
    tied, problem = classes.tied, run.problem
    run.log.append(
        f"copies choose alike: {problem.num_nodes} nodes, {problem.num_columns} columns became "
        f"{tied.problem.num_nodes} nodes, {tied.problem.num_columns} columns; "
        + ("no others are asked for" if tied_alone else f"all cost at least {run.lower_bound}")
    )
    inner = _tied_run(run, tied, 1.0 if is_all else SHARE_TIED)
    try:
        solve_tied(inner)
    finally:
        run.log += inner.log
        run.engine, run.prices = inner.engine, inner.prices
        run.has_sought_leanest = inner.has_sought_leanest
        run.reduced_nodes, run.reduced_columns = inner.reduced_nodes, inner.reduced_columns
        for stage, seconds in inner.seconds.items():
            run.seconds[stage] = run.seconds.get(stage, 0.0) + seconds
        known = (*reversed(inner.hints), inner.leanest, inner.choices)
        for found in reversed(dict.fromkeys(reversed(known))):  # each once, the last one last
            if found is not None:
                run.offer(tied.untie(found))

    if tied_alone:
        run.lower_bound = inner.lower_bound
    elif inner.prices and not run.is_done() and not run.is_over():
        with run.stage("classes"):
            bound = priced_bound(run, inner.prices)
        run.log.append(f"with memory priced at {len(inner.prices)} times, at least {bound}")
        run.lower_bound = max(run.lower_bound, bound)
    return True


def priced_bound(run: Run, prices: Mapping[int, float]) -> int:
    """A bound on answers that fit: `solvers.memory_pricing` has the formula."""
    limit = run.problem.memory_limit
    assert limit is not None
    paying = with_priced_memory(run.problem, prices)
    of_limit = math.ceil(math.fsum(prices.values()) * limit)
    return _bound(run, paying, alike(paying, ROUNDS)) - of_limit


def _bound(run: Run, problem: Problem, found: Alike) -> int:
    """Costs below which no answer lies, memory left out."""
    ascent = ClassBound(problem, found)
    before = 0
    for _ in range(MOST_LOOKS):
        bound = ascent.sweep(SWEEPS_A_LOOK)
        if bound - before <= HARDLY_RISING * run.relative_gap * bound or run.is_over():
            break
        before = bound
    return ascent.proven()


def _tied_run(run: Run, tied: Tied, share: float) -> Run:
    """A run of the tied problem for a share of the time left, told what is known."""
    deadline = run.deadline
    if deadline is not None:
        now = time.monotonic()
        deadline = now + share * max(0.0, deadline - now)
    inner = Run(
        problem=tied.problem,
        deadline=deadline,
        seed=run.seed,
        relative_gap=run.relative_gap,
        progress=_untied(run.progress, tied),
        stop=run.stop,
        seeks_leanest=run.seeks_leanest,
        began=run.began,
        lower_bound=run.lower_bound,
    )
    for hint in reversed(run.hints):
        inner.offer(tied.tie(hint))
    return inner


def _untied(
    progress: Callable[[Progress], None] | None, tied: Tied
) -> Callable[[Progress], None] | None:
    if progress is None:
        return None

    def tell(told: Progress) -> None:
        choices = None if told.choices is None else tied.untie(told.choices)
        progress(replace(told, choices=choices))

    return tell
