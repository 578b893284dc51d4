"""What was compiled so far, and what it says of the plans that follow."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from autoshard.encoding.corrections import Corrections, corrected
from autoshard.encoding.picoseconds import PICOSECONDS
from autoshard.lowering.estimate import peak_memory
from autoshard.lowering.lower import lower
from autoshard.planning.solution import Solution
from autoshard.plans.refinement import TriedPlan
from autoshard.refine.attribution import Observation
from autoshard.refine.choosing import best_of
from autoshard.refine.compiled_plan import MEASURED, CompiledPlan
from autoshard.refine.contenders import Contender
from autoshard.refine.learnt import Learnt
from solvers import evaluate

KNOWN_ERROR = 0.2
"""Of a predicted peak: plans that miss the budget by less are compiled all the same. The peaks of
86 % of 65 plans were within it (experiments/results/compiled.md, 2026-11-30)."""


class Outcome(NamedTuple):
    """A plan, its compiled program, and its row in the record."""

    contender: Contender
    compiled: CompiledPlan
    row: TriedPlan


@dataclass(slots=True, eq=False)
class Outcomes:
    """The plans of one program that were compiled, in order.

    Args:
        base: The plan at hand; plans are compared in its choice problem.
        budget: Bytes per device that a compiled plan may hold; None for no limit.
        learnt: What the compiled plans show together.
        repeated: By name, plans that are the same program as one that was compiled.
        model_seconds: For a second of a run; None where plans are compiled.
        faults: Of the last compiled plan, what the compiler did that the model did not know.
    """

    base: Solution
    budget: int | None
    learnt: Learnt
    repeated: dict[str, Contender] = field(default_factory=dict)
    model_seconds: float | None = None
    faults: tuple[str, ...] = ()
    every: list[Outcome] = field(default_factory=list)

    @property
    def tried(self) -> tuple[TriedPlan, ...]:
        """The record, with the names of plans that are the same program."""
        return tuple(
            replace(row, also=tuple(name for name, same in self.repeated.items() if same is one))
            for one, _, row in self.every
        )

    def add(
        self, contender: Contender, compiled: CompiledPlan, number: int, seconds: float
    ) -> TriedPlan:
        """Add a plan that was compiled; the first that was run takes the seconds it was priced.

        Args:
            contender: The plan.
            compiled: What came of it.
            number: Of the round.
            seconds: That its compile took.
        """
        row = self._row(contender, compiled, number, seconds)
        self.every.append(Outcome(contender, compiled, row))
        is_first_run = compiled.measure == MEASURED and self.model_seconds is None
        if is_first_run and compiled.seconds is not None:
            self.model_seconds = contender.predicted_seconds / compiled.seconds
        return row

    def _row(
        self, contender: Contender, compiled: CompiledPlan, number: int, seconds: float
    ) -> TriedPlan:
        tried, peak = self.tried, compiled.peak_bytes
        best = best_of(tried)
        return TriedPlan(
            round=number,
            name=contender.name,
            status=compiled.status,
            why="; ".join(filter(None, (contender.why, compiled.reason))),
            predicted_seconds=contender.predicted_seconds,
            compiled_seconds=compiled.seconds,
            spread_seconds=compiled.spread_seconds,
            predicted_bytes=contender.data.memory.peak_bytes,
            compiled_bytes=peak,
            fits=peak is not None and (self.budget is None or peak <= self.budget),
            num_constraints=len(compiled.constraints),
            best_before=None if best is None else tried[best].compiled_seconds,
            compile_seconds=seconds,
            plan_seconds=contender.plan_seconds,
        )

    def learn(self, seen: Observation, step_seconds: float) -> None:
        """Learn what the last compiled plan shows, and its seconds of a step in the model's."""
        self.learnt.add(seen, step_seconds)
        self.faults = seen.faults

    def priced(self, seconds: float) -> float:
        """Seconds of a step in those of the model."""
        return seconds * (1.0 if self.model_seconds is None else self.model_seconds)

    def best_seconds(self) -> float | None:
        """Of a step of the best plan, in seconds of the model; None where none fits."""
        best = best_of(self.tried)
        seconds = None if best is None else self.tried[best].compiled_seconds
        return None if seconds is None else self.priced(seconds)

    def cost_of_best(self, solution: Solution) -> float | None:
        """Cost of the best compiled plan at the prices of another one; None where none compiled."""
        best = best_of(self.tried)
        if best is None:
            return None
        known = self.every[best].contender.solution
        if known is not None and known.encoded.has_choices_of(solution.encoded):
            return float(evaluate(solution.encoded.problem, known.choices).cost)
        return self.priced(self.tried[best].compiled_seconds or 0.0) * PICOSECONDS

    def expected_seconds(self, contender: Contender) -> float:
        """Seconds of a step by the model, with what was learnt since it was planned."""
        solution, corrections = self.in_base(contender), self.learnt.corrections()
        if solution is None or corrections.is_empty:
            return contender.predicted_seconds
        encoded = corrected(solution.encoded, corrections, solution.encoder.node_costs)
        return evaluate(encoded.problem, solution.choices).cost / PICOSECONDS

    def choices(self) -> list[tuple[int, ...]]:
        """Of the plans that compiled, in the problem of the plan at hand."""
        compiled = [one.contender for one in self.every if one.compiled.is_compiled]
        found = filter(None, map(self.in_base, compiled))
        return list(dict.fromkeys(one.choices for one in found))

    def start(self) -> Solution:
        """The plan at hand's problem, with the choices of the fastest plan that is known there."""
        for one in sorted(self.every, key=lambda one: one.row.compiled_seconds or math.inf):
            solution = self.in_base(one.contender)
            if solution is not None and one.row.fits and one.row.compiled_seconds is not None:
                return replace(self.base, choices=solution.choices)
        return self.base

    def in_base(self, contender: Contender) -> Solution | None:
        """A plan in the problem of the plan at hand; None where that has not all of its choices."""
        base, solution = self.base.encoded, contender.solution
        if solution is None or not base.has_choices_of(solution.encoded):
            return None
        return replace(solution, encoded=base)

    def is_nearly_within(self, solution: Solution) -> bool:
        """True where a plan misses the budget by no more than the model is known to err."""
        return self.budget is None or solution.peak_bytes <= self.budget * (1 + KNOWN_ERROR)

    def memory_limit(self) -> int | None:
        """The budget without what compiled plans held beyond their corrected predictions.

        Where a plan that the model thought too large was compiled, as much more as it held less;
        where all plans held less than predicted, as much more as they did at least. Plans that the
        model thought far too large say nothing of those near the budget.
        """
        budget = self.budget
        if budget is None:
            return None
        compiled = [
            (one.compiled.peak_bytes, one.contender.solution)
            for one in self.every
            if one.contender.solution is not None
            and one.compiled.peak_bytes is not None
            and self.is_nearly_within(one.contender.solution)
        ]
        over = [one for one in compiled if one[0] > budget or not one[1].is_feasible]
        if not over and all(one.peak_bytes < budget * (1 - KNOWN_ERROR) for _, one in compiled):
            return budget
        corrections = self.learnt.corrections()
        beyond = [peak - _corrected_peak(one, corrections) for peak, one in over or compiled]
        more = max(beyond) if over else max(min(max(beyond), 0), -int(KNOWN_ERROR * budget))
        return max(budget - more, 0)


def _corrected_peak(solution: Solution, corrections: Corrections) -> int:
    """Peak of a plan by the model, with the memory terms of corrections."""
    encoder = solution.encoder
    encoded = corrected(solution.encoded, corrections, encoder.node_costs)
    program = lower(encoder, encoded, solution.decoded, solution.choices)
    return peak_memory(program).peak_bytes
