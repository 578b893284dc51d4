"""HiGHS through PuLP and `highspy`, in a process of its own: an optional extra.

`highspy` and OR-Tools bring libraries of HiGHS that cannot be loaded into one process, so this one
never runs where OR-Tools may be.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any

from solvers.engines.lazy_rows import solve_lazily
from solvers.engines.protocol import Answer, Request
from solvers.engines.pulp_model import PulpRelaxation
from solvers.errors import EngineError
from solvers.own_process import solve_in_own_process
from solvers.problem import Problem


@dataclass(frozen=True, slots=True)
class PulpHighs:
    """Solves the node-edge model by branch and cut."""

    @property
    def name(self) -> str:
        return "pulp_highs"

    @property
    def is_polling(self) -> bool:
        return True  # its process is ended

    def solve(self, problem: Problem, request: Request) -> Answer:
        """Solves, adds violated memory rows, and solves again until none is violated.

        Raises:
            EngineError: `highspy` is not installed.
        """
        if importlib.util.find_spec("highspy") is None:
            raise EngineError(
                "highspy is not installed",
                where="engine pulp_highs",
                fix='pip install "autoshard[pulp-highs]"',
            )
        return solve_in_own_process(_PulpHighsHere(), problem, request)


@dataclass(frozen=True, slots=True)
class _PulpHighsHere:
    """The same in the process at hand, which must not have loaded OR-Tools."""

    @property
    def name(self) -> str:
        return "pulp_highs"

    @property
    def is_polling(self) -> bool:
        return False

    def solve(self, problem: Problem, request: Request) -> Answer:
        def relaxation(modelled: Problem) -> PulpRelaxation:
            return PulpRelaxation(modelled, self.name, _highs)

        return solve_lazily(problem, request, relaxation)


def _highs(pulp: Any, request: Request) -> Any:
    return pulp.HiGHS(
        msg=False,
        threads=1,
        gapRel=request.relative_gap,
        gapAbs=0.0,
        timeLimit=request.seconds_left(),
        warmStart=True,
        random_seed=request.seed % 2**31,
    )
