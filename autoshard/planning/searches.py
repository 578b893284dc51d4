"""The solves that one plan takes: together they keep to one time limit."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from autoshard.encoding.corrections import NO_CORRECTIONS, Corrections
from autoshard.planning.stages import SEARCH, Stages
from solvers import Problem, Progress, Result, Status, evaluate, proven_status, solve

ANY_GAP = 1.0
"""A relative gap that any plan is within."""
SECONDS_WHEN_INTERRUPTED = 1.0
"""A search takes at most, once somebody asked for the best so far, or where time was over before
any choices were found. A choice: commands end soon."""
SHORT = 0.25
"""Of the time limit: a search beside the first one. A choice, as `LONG` is."""
LONG = 0.5
"""Of the time limit: one without which nothing fits. Two of them take no longer than the first
search; nine that were seen took 12 to 50 % of a limit of 20 s (2026-11-23). Of the time that is
left for planning: the most that any search, and plans by hand, may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SolveOptions:
    """How hard to look for the best plan.

    Args:
        engine: A solver's name, or "auto".
        time_limit_seconds: Wall time for the first search, of which half of the time left for
            planning is the most. Where it finds nothing that fits, or what it finds does not fit
            with its gaps or not on the chip, more searches follow, which together take no longer.
        relative_gap: Stop once the plan is proven this close to the best.
        seed: One seed, one plan.
        overlap: Whether collectives that the backend runs beside its computing cost less than those
            it waits for.
        corrections: What was learnt from compiled plans of the program.
        simplicity: How much of the step time may be given up for a plan that is easier to review;
            None for 1 %, as far as that stays within the gap.
        constraint_effort: How much work the search for the smallest set of constraints may take,
            as a multiple of the usual limit.
    """

    engine: str = "auto"
    time_limit_seconds: float = 60.0
    relative_gap: float = 0.01
    seed: int = 0
    overlap: bool = True
    corrections: Corrections = NO_CORRECTIONS
    simplicity: float | None = None
    constraint_effort: float = 1.0


@dataclass(slots=True, eq=False)
class Searches:
    """Solves for one plan, one after the other.

    Args:
        options: The time limit is that of the first, and of all the others together.
        stages: Where to count the time.
        progress: Told of every solve.
        leanest: What takes the least memory, once it was looked for: all others start from it too.
    """

    options: SolveOptions
    stages: Stages
    progress: Callable[[Progress], None] | None = None
    leanest: tuple[int, ...] | None = None
    _seconds_left: float = field(init=False)

    def __post_init__(self) -> None:
        seconds = min(self.options.time_limit_seconds, LONG * self.stages.seconds_left)
        self.options = replace(self.options, time_limit_seconds=seconds)
        self._seconds_left = seconds

    @property
    def is_interrupted(self) -> bool:
        """Somebody asked for the best so far, here or in an earlier search of the planning.

        The first plan that is found is taken then, if one is found soon.
        """
        return self.stages.is_interrupted

    @property
    def is_over(self) -> bool:
        """Whether no other search may follow."""
        return self.stages.is_over or self._seconds_left <= 0

    def first(
        self,
        problem: Problem,
        hint: Sequence[int] | None = None,
        *,
        alike_must_fit: bool = False,
        seeks_leanest: bool = False,
    ) -> Result:
        """The search for the plan; others may come before and after it.

        Once somebody asked for the best so far, that is the leanest.

        Args:
            problem: What to solve.
            hint: Choices to start from.
            alike_must_fit: Where parts repeat and nothing fits in which copies of them choose
                alike, look no further.
            seeks_leanest: Where the cheapest choices do not fit, look for the leanest ones first.
        """
        if self.is_interrupted and self.leanest is not None:
            return _as_found(problem, self.leanest)
        hints = () if hint is None else (hint,)
        seconds = self.options.time_limit_seconds
        return self._solve(
            problem, seconds, hints, alike_must_fit=alike_must_fit, seeks_leanest=seeks_leanest
        )

    def another(
        self,
        problem: Problem,
        *hints: Sequence[int],
        share: float = SHORT,
        relative_gap: float | None = None,
        lower_bound: int = 0,
        copies_alike: bool = False,
        alike_must_fit: bool = False,
        seeks_leanest: bool = False,
    ) -> Result:
        """A search beside that; only where the searches are not over.

        Args:
            problem: What to solve.
            *hints: Choices to start from.
            share: Of the time limit, at most.
            relative_gap: When to stop; that of the options if not given.
            lower_bound: Proven of the same costs with a limit that is no lower.
            copies_alike: Where parts repeat, look only where copies of them choose alike.
            alike_must_fit: As for `first`.
            seeks_leanest: As for `first`.
        """
        began = time.monotonic()
        seconds = min(share * self.options.time_limit_seconds, self._seconds_left)
        seconds = min(seconds, LONG * self.stages.seconds_left)
        result = self._solve(
            problem,
            seconds,
            hints,
            relative_gap,
            lower_bound=lower_bound,
            copies_alike=copies_alike,
            alike_must_fit=alike_must_fit,
            seeks_leanest=seeks_leanest,
        )
        self._seconds_left -= time.monotonic() - began
        return result

    def last(self, problem: Problem) -> Result:
        """A short search for any choices, where time is over before there are some."""
        return self._solve(problem, SECONDS_WHEN_INTERRUPTED, (), ANY_GAP, seeks_leanest=True)

    def from_floor(self, problem: Problem, found: Result, floor: tuple[int, ...]) -> Result:
        """The best of a search that was cut short, known choices, and a search on from them.

        Args:
            problem: What to solve.
            found: By the search.
            floor: Choices that the problem allows.
        """
        known = _as_found(problem, floor)
        assert known.cost is not None
        if found.cost is not None and found.cost <= known.cost:
            return found
        bound = min(found.lower_bound, known.cost)
        known = replace(
            found,
            status=proven_status(known.cost, bound, self.options.relative_gap),
            choices=floor,
            cost=known.cost,
            peak=known.peak,
            peak_time=known.peak_time,
            lower_bound=bound,
        )
        if self.is_over:
            return known
        further = self.another(problem, floor)
        is_better = further.cost is not None and further.cost <= evaluate(problem, floor).cost
        return further if is_better else known

    def _solve(
        self,
        problem: Problem,
        seconds: float,
        hints: Sequence[Sequence[int]],
        relative_gap: float | None = None,
        *,
        lower_bound: int = 0,
        copies_alike: bool = False,
        alike_must_fit: bool = False,
        seeks_leanest: bool = False,
    ) -> Result:
        gap = self.options.relative_gap if relative_gap is None else relative_gap
        if self.is_interrupted:
            seconds = min(seconds, SECONDS_WHEN_INTERRUPTED)
        with self.stages.time(SEARCH):
            result = solve(
                problem,
                engine=self.options.engine,
                time_limit_seconds=seconds,
                seed=self.options.seed,
                relative_gap=ANY_GAP if self.is_interrupted else gap,
                hints=hints if self.leanest is None else (*hints, self.leanest),
                lower_bound=lower_bound,
                progress=self.progress,
                copies_alike=copies_alike,
                alike_must_fit=alike_must_fit,
                seeks_leanest=seeks_leanest,
            )
        self.leanest = result.leanest or self.leanest
        if self.is_interrupted and result.cost is not None:
            status = proven_status(result.cost, result.lower_bound, gap)
            result = replace(result, status=status)
        self.stages.is_interrupted |= result.is_interrupted
        return result


def _as_found(problem: Problem, choices: tuple[int, ...]) -> Result:
    """Choices of which nothing is proven, as the result of a search."""
    found = evaluate(problem, choices)
    if not found.is_allowed:
        return Result(
            status=Status.NO_SOLUTION,
            choices=None,
            cost=None,
            lower_bound=0,
            least_peak=found.peak,
            least_peak_time=found.peak_time,
            least_peak_choices=choices,
            is_interrupted=True,
        )
    return Result(
        status=Status.FEASIBLE,
        choices=choices,
        cost=found.cost,
        lower_bound=0,
        peak=found.peak,
        peak_time=found.peak_time,
        is_interrupted=True,
    )
