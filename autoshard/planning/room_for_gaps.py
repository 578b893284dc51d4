"""Plans whose temporaries fit with the gaps between them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from autoshard.planning.least_memory import leaner
from autoshard.planning.searches import LONG, SHORT, Searches
from autoshard.planning.solution import Solution, as_answer, solution_of
from solvers import Result, Status, evaluate

_MOST_LOWERINGS = 3
"""Of the memory limit. A choice: each takes a solve, and none of 11 plans of five training steps,
within 1.1 and 1.5 times what an answer named as the least, needed one (2026-11-23)."""


def with_room_for_gaps(solution: Solution, searches: Searches) -> Solution:
    """A plan that fits with the gaps between temporaries, if one is found in a few solves.

    The solver counts what is alive at one time: it is asked for a plan with as much less of that
    as one with its gaps takes too much. Where there is none, what holds least of all tells how
    much may be alive. If that does not fit, or none of these, the budget is too small: the one that
    needs least tells by how much.
    """
    limit = solution.encoder.memory_limit
    if limit is None or not solution.is_feasible or solution.peak_bytes <= limit:
        return solution
    search = _GapSearch(solution, limit, searches)
    search.lower()
    for _ in range(_MOST_LOWERINGS):
        if not search.goes_on():
            break
    return search.best()


@dataclass(slots=True, eq=False)
class _GapSearch:
    """Looks for a plan with less alive.

    Args:
        found: The last plan of least cost; until the search ends it is above the limit.
        limit: Bytes a device may hold, gaps included.
        searches: For the solves.
        leanest: What holds least of all, once less was asked for than that.
        lowered: Bytes that may be alive in the next plan.
    """

    found: Solution
    limit: int
    searches: Searches
    leanest: Solution | None = None
    lowered: int = 0

    def lower(self) -> None:
        """Ask for as much less alive as there is too much, or for as much as there can be."""
        self.lowered = max(0, self.found.alive_bytes - (self.found.peak_bytes - self.limit))
        known = self.searches.leanest
        if self.leanest is not None:
            self.lowered = max(self.lowered, self.leanest.alive_bytes)
        elif known and self.lowered < evaluate(self.found.encoded.problem, known).peak:
            self._start_from(self.found.result, known)

    def goes_on(self) -> bool:
        """Search once; whether to search again."""
        is_hopeless = self.leanest is not None and self.leanest.peak_bytes > self.limit
        if is_hopeless or self.searches.is_over or self.lowered >= self.found.alive_bytes:
            return False
        problem = replace(self.found.encoded.problem, memory_limit=self.lowered)
        is_first = self.searches.leanest is None
        result = self.searches.another(
            problem,
            self.found.choices,
            share=SHORT if is_first else LONG,
            lower_bound=self.found.result.lower_bound,
            seeks_leanest=is_first,
        )
        if result.choices is None:
            known = leaner(problem, result, self.searches) if self.leanest is None else None
            if known is None:
                return False
            self._start_from(result, known)
            return True
        again = self._planned(result, result.choices)
        if again.peak_bytes >= self.found.peak_bytes:
            return False
        self.found = again
        self.lower()
        return again.peak_bytes > self.limit

    def _start_from(self, result: Result, leanest: tuple[int, ...]) -> None:
        """Ask for as much more alive than the least as is free beside that."""
        self.searches.leanest = leanest
        self.leanest = self._planned(result, leanest)
        free = max(0, self.limit - self.leanest.peak_bytes)
        most = self.found.alive_bytes - 1
        self.lowered = max(self.leanest.alive_bytes, min(self.leanest.alive_bytes + free, most))

    def _planned(self, result: Result, choices: tuple[int, ...]) -> Solution:
        found, gap = self.found, self.searches.options.relative_gap
        with self.searches.stages.time("account"):
            answer = as_answer(found, result, choices, gap)
            return solution_of(found.encoder, found.encoded, answer)

    def best(self) -> Solution:
        """The cheaper one that fits, else the leaner one, as too large."""
        known = self.searches.leanest
        if self.leanest is None and known and self.found.peak_bytes > self.limit:
            self.leanest = self._planned(self.found.result, known)
        tried = [self.found] if self.leanest is None else [self.found, self.leanest]
        fitting = [one for one in tried if one.peak_bytes <= self.limit]
        if fitting:
            return fitting[0]
        return _as_too_large(min(tried, key=lambda one: one.peak_bytes))


def _as_too_large(solution: Solution) -> Solution:
    """A plan that does not fit with its gaps, as the least that was found for a budget."""
    result = replace(
        solution.result,
        status=Status.NO_SOLUTION,
        choices=None,
        cost=None,
        peak=None,
        least_peak_choices=solution.choices,
        least_peak=solution.peak_bytes,
    )
    return replace(solution, result=result)
