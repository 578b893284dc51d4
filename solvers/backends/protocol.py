"""What every backend takes and gives back."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from solvers.problem import Problem

Report = Callable[[str, int | None, int], None]
"""Called with (stage, cost of the best choices or None, lower bound)."""


def _no_report(stage: str, cost: int | None, lower_bound: int) -> None:
    del stage, cost, lower_bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """How far a backend should go.

    Args:
        deadline: `time.monotonic` value to stop at; None for no limit.
        seed: For whatever is random.
        relative_gap: Stop once this gap is proven.
        hints: Choices to start from, best first; they need not be allowed.
        lower_bound: Already proven elsewhere.
        report: Called now and then with signs of life.
    """

    deadline: float | None = None
    seed: int = 0
    relative_gap: float = 0.0
    hints: tuple[Sequence[int], ...] = ()
    lower_bound: int = 0
    report: Report = _no_report

    def seconds_left(self) -> float | None:
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def is_over(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a backend found. Nothing in it is trusted but the bound; `evaluate` checks the rest.

    Args:
        choices: Best allowed choices, or None.
        lower_bound: No allowed choices cost less.
        is_infeasible: No choices are allowed, proven.
        least_peak_choices: Where memory stood in the way: the choices with the smallest peak.
        least_peak_bound: No choices have a smaller peak.
        log: One line a step.
    """

    choices: tuple[int, ...] | None
    lower_bound: int = 0
    is_infeasible: bool = False
    least_peak_choices: tuple[int, ...] | None = None
    least_peak_bound: int = 0
    log: tuple[str, ...] = field(default=())


class Backend(Protocol):
    """Solves a (presolved) problem; times in it are row numbers."""

    @property
    def name(self) -> str: ...

    def solve(self, problem: Problem, request: Request) -> Answer:
        """Returns the best answer found until the deadline."""
        ...
