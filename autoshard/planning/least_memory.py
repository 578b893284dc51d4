"""Searches for what takes the least memory, and from there."""

from __future__ import annotations

from dataclasses import replace

from autoshard.planning.searches import LONG, SHORT, Searches
from solvers import NO_ROOM, Problem, Result, Status


def solved_from_leanest(problem: Problem, found: Result, searches: Searches) -> Result:
    """Search again where time ran out before anything fitted, from what takes the least memory.

    Where the search that found nothing looked for that first, it is known.
    """
    if problem.memory_limit is None or searches.is_over:
        return found
    is_known = found.leanest is not None
    lean = found if is_known else _solved_leanest(problem, searches, LONG)
    if lean.least_peak is None:
        return found
    if lean.least_peak > problem.memory_limit or searches.is_over:
        return _with_leanest(found, lean)
    return searches.another(problem, share=LONG)


def leaner(problem: Problem, found: Result, searches: Searches) -> tuple[int, ...] | None:
    """What holds least of two: a result without choices, and what is found with no room at all.

    A search that looks for nothing else mostly finds less in the same time; where one was made,
    none follows.
    """
    is_known = searches.leanest is not None or found.status is Status.INFEASIBLE
    if not is_known and not searches.is_over:
        lean = _solved_leanest(problem, searches, SHORT)
        if lean.least_peak is not None:
            is_less = found.least_peak is None or lean.least_peak < found.least_peak
            return lean.least_peak_choices if is_less else found.least_peak_choices
    return found.least_peak_choices


def _solved_leanest(problem: Problem, searches: Searches, share: float) -> Result:
    nothing_fits = replace(problem, memory_limit=NO_ROOM)
    found = searches.another(nothing_fits, share=share)
    searches.leanest = found.least_peak_choices or searches.leanest
    return found


def _with_leanest(found: Result, lean: Result) -> Result:
    """A result without choices, with the least memory that another search found."""
    return replace(
        found,
        least_peak=lean.least_peak,
        least_peak_time=lean.least_peak_time,
        least_peak_choices=lean.least_peak_choices,
        least_peak_bound=max(found.least_peak_bound, lean.least_peak_bound),
    )
