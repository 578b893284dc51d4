"""A library's engine in a process of its own where the problem is large: it can be stopped."""

from __future__ import annotations

from dataclasses import dataclass

from solvers.engines.protocol import Answer, Engine, Request
from solvers.own_process import solve_in_own_process
from solvers.problem import Problem

CONTAINED_FROM = 20_000
"""Columns from which a library runs in a process of its own; below, it is done soon."""


@dataclass(frozen=True, slots=True)
class Contained:
    """Runs another engine, apart where that is worth the second a process takes to start.

    Args:
        engine: What runs.
    """

    engine: Engine

    @property
    def name(self) -> str:
        return self.engine.name

    @property
    def is_polling(self) -> bool:
        return True

    def solve(self, problem: Problem, request: Request) -> Answer:
        """Returns the answer of the engine."""
        if problem.num_columns < CONTAINED_FROM:
            return self.engine.solve(problem, request)
        return solve_in_own_process(self.engine, problem, request)
