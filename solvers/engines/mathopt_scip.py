"""SCIP through OR-Tools MathOpt, memory rows added when violated: a second branch and cut."""

from __future__ import annotations

from dataclasses import dataclass

from solvers.engines.lazy_rows import solve_lazily
from solvers.engines.mathopt_model import MathOptRelaxation
from solvers.engines.protocol import Answer, Request
from solvers.problem import Problem


@dataclass(frozen=True, slots=True)
class MathOptScip:
    """Solves the node-edge model by branch and cut."""

    @property
    def name(self) -> str:
        return "mathopt_scip"

    @property
    def is_polling(self) -> bool:
        return False

    def solve(self, problem: Problem, request: Request) -> Answer:
        """Solves, adds violated memory rows, and solves again until none is violated."""

        def relaxation(modelled: Problem) -> MathOptRelaxation:
            return MathOptRelaxation(modelled, "GSCIP", self.name)

        return solve_lazily(problem, request, relaxation)
