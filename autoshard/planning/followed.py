"""A plan after the searches that may follow the one that found it."""

from __future__ import annotations

from dataclasses import replace

from autoshard.planning.room_for_gaps import with_room_for_gaps
from autoshard.planning.room_on_chip import with_room_on_chip
from autoshard.planning.searches import Searches
from autoshard.planning.simpler import simpler
from autoshard.planning.solution import Solution, solution_of
from autoshard.planning.states_in_memory import with_states_in_memory
from autoshard.planning.tightened import tightened

LEANEST_GAP, _QUICK_GAP, _QUICK_SHARE = 0.1, 0.3, 0.05
"""Gaps of searches for cheap choices among the leanest, of a last one and of one on the way, and
the share of the time limit of that one.

Choices: of a last plan the peak as lowered is 0 to 11 % less with the second, found in 0.2 to 0.4 s
of three programs; of an 8B Llama that may repeat its forward pass the first took 12 s for 30 %.
From a gap of 0.1 to 0.05 it was 0 to 0.1 % (2026-11-30).
"""


def followed_and_simpler(solution: Solution, searches: Searches) -> Solution:
    """The plan of a last round after the searches that may follow, made simpler.

    A simpler plan that none of these searches changes is the answer: that it is made of need not be
    lowered, as far as a bound on its time tells what is given up.
    """
    simplicity = searches.options.simplicity
    is_proven = solution.result.status.is_proven
    at_once = simpler(solution, searches, simplicity) if is_proven else solution
    if at_once is not solution:
        found = followed(at_once, searches)
        if found.choices == at_once.choices and found.result.status.is_proven:
            return at_end(found, searches)
    found = followed(solution, searches)
    is_simple = is_proven and at_once is solution and found.encoded is solution.encoded
    return at_end(found if is_simple else simpler(found, searches, simplicity), searches)


def followed(solution: Solution, searches: Searches) -> Solution:
    """A plan, after the searches that may follow the one that found it."""
    with searches.stages.time("account"):
        _ = solution.estimate
    roomy = with_room_on_chip(leanest_as_lowered(solution, searches), searches)
    fitting = with_states_in_memory(with_room_for_gaps(roomy, searches), searches)
    found = tightened(fitting, searches)
    is_same = found.choices == solution.choices and found is not solution
    return replace(found, hand_plan=solution.hand_plan) if is_same else found


def leanest_as_lowered(
    solution: Solution,
    searches: Searches,
    relative_gap: float = _QUICK_GAP,
    share: float = _QUICK_SHARE,
) -> Solution:
    """Where no plan fits, the cheapest that holds the least by the problem, if it is the leaner.

    Many choices hold the least there, where outputs in VMEM take nothing; one with larger outputs
    spills more of them to HBM, and costs more.
    """
    least = solution.result.least_peak
    if solution.is_feasible or least is None or searches.is_over:
        return solution
    problem = replace(solution.encoded.problem, memory_limit=least)
    choices = searches.another(
        problem,
        solution.choices,
        share=share,
        relative_gap=relative_gap,
        copies_alike=True,
    ).choices
    if choices is None:
        return solution
    with searches.stages.time("account"):
        result = replace(solution.result, least_peak_choices=choices)
        found = solution_of(solution.encoder, solution.encoded, result)
    return found if found.peak_bytes < solution.peak_bytes else solution


def at_end(solution: Solution, searches: Searches) -> Solution:
    """The same, told whether somebody asked for the best so far in any search."""
    result = replace(solution.result, is_interrupted=searches.is_interrupted)
    return replace(solution, result=result)
