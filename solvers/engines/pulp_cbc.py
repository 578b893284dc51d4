"""CBC through PuLP, memory rows added when violated: an independent exact engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from solvers.engines.lazy_rows import solve_lazily
from solvers.engines.protocol import Answer, Request
from solvers.engines.pulp_model import PulpRelaxation
from solvers.problem import Problem


@dataclass(frozen=True, slots=True)
class PulpCbc:
    """Solves the node-edge model by branch and cut; for up to some ten thousand columns."""

    @property
    def name(self) -> str:
        return "pulp_cbc"

    @property
    def is_polling(self) -> bool:
        return False

    def solve(self, problem: Problem, request: Request) -> Answer:
        """Solves, adds violated memory rows, and solves again until none is violated."""

        def relaxation(modelled: Problem) -> PulpRelaxation:
            return PulpRelaxation(modelled, self.name, _cbc)

        return solve_lazily(problem, request, relaxation)


def _cbc(pulp: Any, request: Request) -> Any:
    seconds = request.seconds_left()
    return pulp.COIN_CMD(
        path=pulp.PULP_CBC_CMD.pulp_cbc_path,  # the CBC that comes with PuLP
        msg=False,
        threads=1,
        gapRel=request.relative_gap,
        gapAbs=0.0,
        warmStart=True,
        timeLimit=None if seconds is None else max(1.0, seconds),
        options=[f"randomCbcSeed {request.seed % 2**31 + 1}"],
    )
