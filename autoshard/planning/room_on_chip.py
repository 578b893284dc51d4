"""Plans that fit because part of what is alive lies in the memory of the chip."""

from __future__ import annotations

from dataclasses import replace

from autoshard.planning.room_for_gaps import with_room_for_gaps
from autoshard.planning.searches import LONG, Searches
from autoshard.planning.solution import Solution, solution_of
from solvers import Result, evaluate, proven_status


def with_room_on_chip(solution: Solution, searches: Searches) -> Solution:
    """A plan for a budget that the leanest one meets, although more than that is alive.

    Solvers count all that is alive in device memory, as what has room on the chip depends on the
    whole plan. Where they find nothing and the leanest plan fits all the same, as much more may be
    alive than in that one as it leaves free.
    """
    limit = solution.encoder.memory_limit
    if limit is None or solution.is_feasible or solution.peak_bytes > limit or searches.is_over:
        return solution
    raised = solution.alive_bytes + limit - solution.peak_bytes
    problem = replace(solution.encoded.problem, memory_limit=raised)
    result = searches.another(problem, solution.choices, share=LONG)
    leanest = _planned(solution, raised, _answer(solution, result, searches))
    if result.choices is None or result.choices == solution.choices:
        return leanest
    found = with_room_for_gaps(_planned(solution, raised, result), searches)
    return found if found.is_feasible else leanest


def _answer(solution: Solution, result: Result, searches: Searches) -> Result:
    """The choices of the leanest plan, as what a search with more room found."""
    found = evaluate(solution.encoded.problem, solution.choices)
    lower_bound = min(result.lower_bound, found.cost)
    return replace(
        result,
        status=proven_status(found.cost, lower_bound, searches.options.relative_gap),
        choices=solution.choices,
        cost=found.cost,
        peak=found.peak,
        peak_time=found.peak_time,
        lower_bound=lower_bound,
    )


def _planned(solution: Solution, limit: int, result: Result) -> Solution:
    problem = replace(solution.encoded.problem, memory_limit=limit)
    encoded = replace(solution.encoded, problem=problem)
    return solution_of(solution.encoder, encoded, result)
