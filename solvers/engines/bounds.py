"""Bounds by message passing, pruning, reductions and an exact finish: the scalable engine."""

from __future__ import annotations

from dataclasses import dataclass, replace

from solvers.bound_pruning import solve_by_bounds
from solvers.engines.contained import Contained
from solvers.engines.mathopt_highs import MathOptHighs
from solvers.engines.protocol import Answer, Engine, Request
from solvers.evaluate import evaluate
from solvers.memory_rows import num_rows_of
from solvers.problem import Problem
from solvers.within_memory import WithinMemory


@dataclass(frozen=True, slots=True)
class Bounds:
    """Solves without the memory limit first; prices the rows that bind if the answer does not fit.

    Args:
        has_finish: Hand what is left to HiGHS; without it the gap that is left is returned.
        is_limit_tight: Do not try without the memory limit.
    """

    has_finish: bool = True
    is_limit_tight: bool = False

    @property
    def name(self) -> str:
        return "bounds" if self.has_finish else "message_passing"

    @property
    def is_polling(self) -> bool:
        return True

    def solve(self, problem: Problem, request: Request) -> Answer:
        """Returns the best answer and the bound that was proven."""
        if self.is_limit_tight and problem.memory_limit is not None:
            return self._within(problem, request, ())
        relaxed = solve_by_bounds(
            problem,
            relative_gap=request.relative_gap,
            constant=request.constant,
            deadline=request.deadline,
            seed=request.seed,
            hints=request.hints,
            finisher=Contained(MathOptHighs()) if self.has_finish else None,
            incumbent=request.incumbent,
        )
        lower_bound = max(request.lower_bound, relaxed.lower_bound)
        if relaxed.is_infeasible or relaxed.choices is None:
            return Answer(
                choices=None,
                lower_bound=lower_bound,
                is_infeasible=relaxed.is_infeasible,
                log=relaxed.log,
            )
        if problem.memory_limit is None or evaluate(problem, relaxed.choices).is_allowed:
            return Answer(choices=relaxed.choices, lower_bound=lower_bound, log=relaxed.log)
        known = replace(request, hints=(relaxed.choices, *request.hints), lower_bound=lower_bound)
        return self._within(problem, known, relaxed.log)

    def _within(self, problem: Problem, request: Request, log: tuple[str, ...]) -> Answer:
        within = WithinMemory(
            problem, num_rows_of(problem), request, finisher if self.has_finish else None
        ).run()
        return Answer(
            choices=within.choices,
            lower_bound=within.lower_bound,
            is_infeasible=within.is_infeasible,
            least_peak_choices=within.least_peak_choices,
            least_peak_bound=within.least_peak_bound,
            log=(*log, *within.log),
        )


def finisher(rows: tuple[int, ...]) -> Engine:
    """What solves the problems bounds leave, with memory rows to begin with."""
    return Contained(MathOptHighs(first_rows=rows))
