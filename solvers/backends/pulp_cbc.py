"""CBC through PuLP, memory rows added when violated: an independent exact backend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from solvers.backends.lazy_rows import solve_lazily
from solvers.backends.protocol import Answer, Request
from solvers.backends.pulp_model import PulpEngine
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

        def engine(modelled: Problem) -> PulpEngine:
            return PulpEngine(modelled, self.name, _cbc)

        return solve_lazily(problem, request, engine)


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
