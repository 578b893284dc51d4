"""Plans that fit because part of what is alive lies in the memory of the chip."""

from __future__ import annotations

from dataclasses import replace

from autoshard.planning.room_for_gaps import with_room_for_gaps
from autoshard.planning.searches import LONG, Searches
from autoshard.planning.solution import Solution, as_answer, solution_of


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
    roomy = replace(solution, encoded=replace(solution.encoded, problem=problem), result=result)
    answer = as_answer(roomy, result, solution.choices, searches.options.relative_gap)
    leanest = replace(roomy, result=answer)
    if result.choices is None or result.choices == solution.choices:
        return leanest
    with searches.stages.time("account"):
        cheaper = solution_of(roomy.encoder, roomy.encoded, result)
    found = with_room_for_gaps(cheaper, searches)
    return found if found.is_feasible else leanest
