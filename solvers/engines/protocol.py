"""What every engine takes and gives back."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from solvers.incumbent import Incumbent
from solvers.problem import Problem
from solvers.result import relative_gap

Report = Callable[[str, int | None, int], None]
"""Called with (stage, cost of the best choices or None, lower bound)."""


def _no_report(stage: str, cost: int | None, lower_bound: int) -> None:
    del stage, cost, lower_bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """How far an engine should go.

    Args:
        deadline: `time.monotonic` value to stop at; None for no limit.
        seed: For whatever is random.
        relative_gap: Stop once this gap is proven.
        constant: Paid beyond the problem; counts for the relative gap only. An engine that leaves
            it out does more than it was asked for.
        hints: Choices to start from, best first; they need not be allowed.
        lower_bound: Already proven elsewhere.
        report: Called now and then with signs of life.
        incumbent: Of the lanes at work on the same problem; never that of another problem.
        stop: Whether somebody asked to return soon.
    """

    deadline: float | None = None
    seed: int = 0
    relative_gap: float = 0.0
    constant: int = 0
    hints: tuple[Sequence[int], ...] = ()
    lower_bound: int = 0
    report: Report = _no_report
    incumbent: Incumbent | None = None
    stop: Callable[[], bool] | None = None

    @classmethod
    def of(cls, incumbent: Incumbent, hints: tuple[Sequence[int], ...] = ()) -> Request:
        """The request of a lane: start from the best known, tell what is found, stop with it."""
        _, best = incumbent.best()
        return cls(
            deadline=incumbent.deadline,
            seed=incumbent.seed,
            relative_gap=incumbent.relative_gap,
            hints=hints if best is None else (best, *hints),
            lower_bound=incumbent.bound(),
            incumbent=incumbent,
            stop=incumbent.is_over,
        )

    def for_part(
        self, constant: int, *, hints: tuple[Sequence[int], ...] = (), lower_bound: int = 0
    ) -> Request:
        """The request for another problem made from this one: nothing is told of it.

        Args:
            constant: What this problem costs beyond the other one.
            hints: Of the other one.
            lower_bound: Of the other one.
        """
        return replace(
            self,
            constant=self.constant + constant,
            hints=hints,
            lower_bound=lower_bound,
            report=_no_report,
            incumbent=None,
        )

    def gap(self, cost: int | None, lower_bound: int) -> float:
        """How far a cost may be above the best, as a fraction of it, the constant included."""
        whole = None if cost is None else cost + self.constant
        return relative_gap(whole, lower_bound + self.constant)

    def seconds_left(self) -> float | None:
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def is_over(self) -> bool:
        if self.stop is not None and self.stop():
            return True
        return self.deadline is not None and time.monotonic() >= self.deadline

    def known(self) -> tuple[int | None, tuple[int, ...] | None]:
        """The least cost another lane knows, and its choices."""
        return (None, None) if self.incumbent is None else self.incumbent.best()

    def tell(
        self, source: str, choices: Sequence[int] | None, cost: int | None, lower_bound: int
    ) -> None:
        """Tells the other lanes of allowed choices and of a bound, and whoever watches."""
        if self.incumbent is not None:
            if choices is not None and cost is not None:
                self.incumbent.offer(choices, cost, source=source)
            self.incumbent.offer_bound(lower_bound, source=source)
        self.report(source, cost, lower_bound)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What an engine found. Nothing in it is trusted but the bound; `evaluate` checks the rest.

    Args:
        choices: Best allowed choices, or None.
        lower_bound: No allowed choices cost less.
        is_infeasible: No choices are allowed, proven.
        least_peak_choices: Where memory stood in the way: the choices with the smallest peak.
        least_peak_bound: No choices have a smaller peak.
        clashing_rows: With is_infeasible, memory rows that no choices keep together; empty where
            that is not known.
        log: One line a step.
    """

    choices: tuple[int, ...] | None
    lower_bound: int = 0
    is_infeasible: bool = False
    least_peak_choices: tuple[int, ...] | None = None
    least_peak_bound: int = 0
    clashing_rows: tuple[int, ...] = ()
    log: tuple[str, ...] = field(default=())


class Engine(Protocol):
    """Solves a (presolved) problem; times in it are row numbers."""

    @property
    def name(self) -> str: ...

    @property
    def is_polling(self) -> bool:
        """Whether it returns soon once the request is over; a library need not."""
        ...

    def solve(self, problem: Problem, request: Request) -> Answer:
        """Returns the best answer found until the deadline."""
        ...
