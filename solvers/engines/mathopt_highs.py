"""HiGHS through OR-Tools MathOpt, memory rows added when violated: the default exact engine."""

from __future__ import annotations

from dataclasses import dataclass

from solvers.engines.lazy_rows import solve_lazily
from solvers.engines.mathopt_model import MathOptRelaxation
from solvers.engines.protocol import Answer, Request
from solvers.problem import Problem


@dataclass(frozen=True, slots=True)
class MathOptHighs:
    """Solves the node-edge model by branch and cut.

    Args:
        first_rows: Memory rows to put into the model from the start.
    """

    first_rows: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        return "mathopt_highs"

    @property
    def is_polling(self) -> bool:
        return False

    def solve(self, problem: Problem, request: Request) -> Answer:
        """Solves, adds violated memory rows, and solves again until none is violated."""

        def relaxation(modelled: Problem) -> MathOptRelaxation:
            return MathOptRelaxation(modelled, "HIGHS", self.name)

        return solve_lazily(problem, request, relaxation, self.first_rows)
