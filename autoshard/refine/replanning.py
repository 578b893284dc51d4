"""Plans at corrected costs: the next ones to compile, the most cautious first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from autoshard.planning.planner import plan_corrected
from autoshard.planning.searches import SolveOptions
from autoshard.planning.solution import NoPlanInTimeError, Solution
from autoshard.refine.alternatives import alternative
from autoshard.refine.choosing import best_of
from autoshard.refine.learnt import in_words
from autoshard.refine.outcomes import Outcomes
from autoshard.report.quantities import format_bytes, format_percent

WORTH_A_ROUND = 0.01
"""Of the step time: once no plan can win more by the corrected model, refining ends."""
MARGINS = (1.0, 0.3, 0.1)
"""Of the costs, what differs from compiled plans counts more, the most cautious first. A choice:
plans made at corrected prices alone compiled to 3 to 54 % more than those (experiments/results/
refined.md, 2026-11-24), so the next plan differs from what compiled only where that wins more."""
LEAST_SOLVE = 20.0
"""Seconds: a solve may take so many, and as long as the longest compile. A choice: at a memory
limit proofs take all the time they are given, which compiles need."""
_MOST_FAULTS = 2
REPEATS = "the plan repeats"


class NoFurtherRoundError(Exception):
    """No further round follows; the message says why."""


class Proposal(NamedTuple):
    """A plan to compile, and why."""

    solution: Solution
    why: str


@dataclass(slots=True, eq=False)
class Replanner:
    """Plans again with what was learnt.

    Args:
        outcomes: The plans that were compiled.
        options: For every solve.
        seconds_left: Gives the seconds that are left, or raises `NoFurtherRoundError`.
        tell: Told what is corrected.
        left: Of the step time, the share that is left to win at most; None before it is known.
    """

    outcomes: Outcomes
    options: SolveOptions
    seconds_left: Callable[[], float]
    tell: Callable[[str], None]
    left: float | None = None
    _boldest: Solution | None = None

    def proposals(self) -> Iterator[Proposal]:
        """The plans that win enough, each once, then the best by the corrected model.

        The first is the best where all that differs from compiled plans counts with a margin, which
        becomes smaller.

        Raises:
            NoFurtherRoundError: Nothing is left to win, nothing fits, or time is up.
        """
        self._boldest = boldest = self._best()
        seen: set[tuple[int, ...]] = set()
        for margin in MARGINS:
            found = self._cautious(margin)
            if found is None or found.choices in seen:
                continue
            seen.add(found.choices)
            if self._wins_enough(found):
                yield Proposal(found, self._why(margin))
        if boldest.choices not in seen or not self._wins_enough(boldest):
            yield Proposal(boldest, self._why(0.0))

    def other(self) -> Proposal:
        """Where the proposals repeat: a plan that costs hardly more and differs in big tensors.

        Raises:
            NoFurtherRoundError: There is none.
        """
        assert self._boldest is not None
        found = alternative(self._boldest, self.outcomes.choices(), self._solve_options())
        if found is None:
            raise NoFurtherRoundError(REPEATS)
        return Proposal(found, f"{REPEATS}; this one costs hardly more and differs in big tensors")

    def _best(self) -> Solution:
        """The best plan at corrected costs; its bound says what is left to win."""
        options = self._solve_options()
        told = in_words(options.corrections) or "nothing new"
        self.tell(f"planning again with {told} corrected")
        try:
            found = self._solved(options, 0.0)
        except NoPlanInTimeError as error:
            raise NoFurtherRoundError("no other plan was found in time") from error
        self._bound(found)
        self._check_worth(found)
        return found

    def _cautious(self, margin: float) -> Solution | None:
        """The best plan at corrected costs and a margin; None where none is found."""
        try:
            found = self._solved(self._solve_options(), margin)
        except NoPlanInTimeError:
            return None
        return found if found.is_feasible else None

    def _solved(self, options: SolveOptions, margin: float) -> Solution:
        start, known = self.outcomes.start(), self.outcomes.choices()
        limit = self.outcomes.memory_limit()
        return plan_corrected(
            start, options.corrections, limit, options, known=known, margin=margin
        )

    def _solve_options(self) -> SolveOptions:
        """For a solve in the time that is left, and no longer than a compile takes."""
        compiles = (one.row.compile_seconds for one in self.outcomes.every)
        enough = max(compiles, default=0.0)
        seconds = min(
            self.options.time_limit_seconds, self.seconds_left(), max(enough, LEAST_SOLVE)
        )
        corrections = self.outcomes.learnt.corrections()
        return replace(self.options, time_limit_seconds=seconds, corrections=corrections)

    def _bound(self, solution: Solution) -> None:
        """What any plan can win over the best one by the corrected model; a run prices no op."""
        cost = self.outcomes.cost_of_best(solution)
        if cost and solution.is_feasible and self.outcomes.model_seconds is None:
            self.left = max(1 - solution.result.lower_bound / cost, 0.0)

    def _check_worth(self, solution: Solution) -> None:
        has_best = best_of(self.outcomes.tried) is not None
        if self.left is not None and self.left < WORTH_A_ROUND and has_best:
            raise NoFurtherRoundError(f"at most {format_percent(self.left)} is left to win")
        if not solution.is_feasible and not self.outcomes.is_nearly_within(solution):
            raise NoFurtherRoundError("no other plan fits the memory budget by the corrected model")

    def _wins_enough(self, solution: Solution) -> bool:
        """True where a plan is predicted to be worth a round."""
        best, cost = self.outcomes.cost_of_best(solution), solution.result.cost
        return best is None or (cost is not None and cost < (1 - WORTH_A_ROUND) * best)

    def _why(self, margin: float) -> str:
        budget, limit = self.outcomes.budget, self.outcomes.memory_limit()
        told = list(self.outcomes.faults[:_MOST_FAULTS])
        if margin:
            told.append(f"what differs from compiled plans counts {format_percent(margin)} more")
        if limit is not None and budget is not None and limit < budget:
            told.append(f"{format_bytes(budget - limit)} more kept free for the compiler")
        return "; ".join(told) or "prices of compiled ops and collectives"
