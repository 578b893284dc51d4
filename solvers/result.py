"""What a solve returns: a status that says what to do next, the choices, and what is proven."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

NEGLIGIBLE_GAP = 1e-8
"""A relative gap that floating-point engines cannot close: a search that gets there is done."""


class Status(Enum):
    """How a solve ended; `Result.advice` tells the user what to do next."""

    OPTIMAL = "optimal"
    WITHIN_GAP = "within gap"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    NO_SOLUTION = "no solution"

    @property
    def has_choices(self) -> bool:
        return self in (Status.OPTIMAL, Status.WITHIN_GAP, Status.FEASIBLE)

    @property
    def is_proven(self) -> bool:
        """True where a bound shows that the choices are as good as was asked for."""
        return self in (Status.OPTIMAL, Status.WITHIN_GAP)


_ADVICE = {
    Status.OPTIMAL: "Nothing costs less; use the choices as they are.",
    Status.WITHIN_GAP: (
        "The choices are proven to cost at most the asked relative gap, or 1e-8, more than the "
        "best; ask for a smaller relative_gap to search on."
    ),
    Status.FEASIBLE: (
        "The choices are allowed but not proven within the asked gap; raise the time limit, or "
        "accept the gap that lower_bound proves."
    ),
    Status.INFEASIBLE: (
        "No choices are allowed: raise the memory limit to at least {least_peak}, offer choices "
        "that hold less, or drop forbidden costs."
    ),
    Status.NO_SOLUTION: (
        "Nothing allowed was found and nothing was proven: raise the time limit, or raise the "
        "memory limit to {least_peak}, which some choices reach."
    ),
}


@dataclass(frozen=True, slots=True)
class Progress:
    """A sign of life from a running solve.

    Args:
        seconds: Since the solve began.
        stage: What is being done.
        cost: Of the best allowed choices so far.
        lower_bound: Proven so far.
        choices: Allowed ones, where any were judged so far; others may cost less by now.
    """

    seconds: float
    stage: str
    cost: int | None
    lower_bound: int
    choices: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Outcome of a solve; cost and peak were recomputed by `evaluate` on the original problem.

    Args:
        status: How it ended.
        choices: One index per node; None where nothing allowed was found.
        cost: Of `choices`.
        lower_bound: No allowed choices cost less.
        peak: Most bytes `choices` hold at one time.
        peak_time: First time they hold it.
        engine: What solved it.
        seconds_by_stage: Wall time by stage, in the order the stages ran.
        reduced_nodes: Nodes left for the engine after presolve.
        reduced_columns: Columns (choices and pairs of choices) left for the engine.
        log: What was done and why, one line a step.
        least_peak: Where memory stood in the way, the smallest peak found for any choices
            without a forbidden cost.
        least_peak_time: First time that peak is held.
        least_peak_choices: The choices that reach it.
        least_peak_bound: No choices have a smaller peak than this; with INFEASIBLE it may be above
            the limit.
        clashing_times: Without choices, times whose memory rows stand in the way: with INFEASIBLE
            those that no choices keep together where the proof names them, else those
            `least_peak_choices` violate.
        is_interrupted: Somebody asked for the best so far.
        leanest: The choices with the smallest peak seen, where these were asked for and the limit
            binds.
        memory_prices: Cost of a byte at times at which the limit binds, of the last bound proven by
            such prices; empty where there is none.
        bound_without_limit: No choices cost less, whatever memory they hold; 0 where none is known.
    """

    status: Status
    choices: tuple[int, ...] | None
    cost: int | None
    lower_bound: int
    peak: int | None = None
    peak_time: int | None = None
    engine: str = ""
    seconds_by_stage: dict[str, float] = field(default_factory=dict)
    reduced_nodes: int = 0
    reduced_columns: int = 0
    log: tuple[str, ...] = ()
    least_peak: int | None = None
    least_peak_time: int | None = None
    least_peak_choices: tuple[int, ...] | None = None
    least_peak_bound: int = 0
    clashing_times: tuple[int, ...] = ()
    is_interrupted: bool = False
    leanest: tuple[int, ...] | None = None
    memory_prices: Mapping[int, float] = field(default_factory=dict)
    bound_without_limit: int = 0

    @property
    def gap(self) -> float:
        """How far `cost` may be above the best, as a fraction of `cost`; inf without choices."""
        return relative_gap(self.cost, self.lower_bound)

    @property
    def advice(self) -> str:
        """What the user should do next, with the smallest peak found as a figure."""
        if self.least_peak is not None or self.status.has_choices:
            return _ADVICE[self.status].format(least_peak=self.least_peak)
        if self.status is Status.NO_SOLUTION:
            return "Nothing allowed was found and nothing was proven: raise the time limit."
        if self.least_peak_bound:
            return (
                f"No choices are allowed: every peak is at least {self.least_peak_bound}; raise "
                "the memory limit, or offer choices that hold less."
            )
        return "No choices are allowed: forbidden costs leave none; drop some of them."


def relative_gap(cost: int | None, lower_bound: int) -> float:
    """Returns ``(cost - lower_bound) / cost``, 0 where they meet and inf without a cost."""
    if cost is None:
        return math.inf
    if cost <= lower_bound:
        return 0.0
    return (cost - lower_bound) / cost


def proven_status(cost: int, lower_bound: int, gap: float) -> Status:
    """Of choices that are allowed, by what is proven.

    Args:
        cost: Of the choices.
        lower_bound: No allowed choices cost less.
        gap: Relative gap that is asked for.
    """
    if cost <= lower_bound:
        return Status.OPTIMAL
    is_near = relative_gap(cost, lower_bound) <= max(gap, NEGLIGIBLE_GAP)
    return Status.WITHIN_GAP if is_near else Status.FEASIBLE
