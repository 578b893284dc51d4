"""The search for the choices of smallest peak: what a user with too low a limit is told."""

from __future__ import annotations

import time
from dataclasses import replace

from solvers.exact_lane import find_least_peak
from solvers.grounded import Grounded
from solvers.lanes import Lane, run_lanes
from solvers.memory_pricing import PROVEN_PEAK_SHARE
from solvers.presolve import reduce_fully
from solvers.problem import Problem
from solvers.run import Run

NO_ROOM = 1
"""A limit that nothing fits: solving then finds the least there is."""


def seek_leanest(run: Run) -> None:
    """Looks for the leanest answer to start from, where one is asked for and none fits yet."""
    is_asked = run.seeks_leanest and not run.has_sought_leanest
    if is_asked and run.cost is None and not run.is_over():
        run.has_sought_leanest = True
        find_smallest_peak(run, replace(run.problem, memory_limit=NO_ROOM))


def find_smallest_peak(run: Run, problem: Problem | None = None) -> None:
    """Looks for what to tell a user whose limit is too low: the smallest peak, and where it is.

    Args:
        run: Keeps what is found.
        problem: The same with another limit, below which smaller peaks are not told apart.
    """
    problem = run.problem if problem is None else problem
    reduced = reduce_fully(problem, rules=(), drops_unfitting=False, is_over=run.is_over)
    if reduced.is_infeasible or run.is_over():
        return
    grounded = Grounded.of(reduced)
    if grounded.problem.memory_limit is None:  # all that forbidden costs leave fits
        return
    incumbent = run.incumbent_for(grounded)
    if incumbent.deadline is not None:
        until = time.monotonic() + run.share_of_limit(PROVEN_PEAK_SHARE)
        incumbent.deadline = min(incumbent.deadline, until)
    lane = Lane("least peak", find_least_peak, incumbent)
    with run.stage("least peak"):
        run_lanes(
            grounded.problem,
            [lane],
            is_settled=run.is_over,
            watch=lambda: None,
            grace_seconds=run.grace_seconds(),
        )
    run.take(grounded, incumbent)
