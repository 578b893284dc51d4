"""Solve, add the memory rows the answer violates, solve again: what exact engines share.

A relaxation solves a model that starts without memory rows (a relaxation, so its bounds hold). All
rows at once would be tens of thousands, of which a handful bind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from solvers.engines.protocol import Answer, Request
from solvers.evaluate import evaluate
from solvers.local_search import LocalSearch
from solvers.memory_rows import RowUse, num_rows_of, rows_to_add
from solvers.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one run of a relaxation found, with the rows it has.

    Args:
        choices: The best found, or None.
        lower_bound: No choices that keep the relaxation's rows cost less.
        is_proven: `choices` are best among those that keep the relaxation's rows.
        is_infeasible: No choices keep the relaxation's rows.
        log: One line.
    """

    choices: tuple[int, ...] | None = None
    lower_bound: int = 0
    is_proven: bool = False
    is_infeasible: bool = False
    log: str = ""


class Relaxation(Protocol):
    """A model of a problem inside a library, with some of the memory rows."""

    @property
    def size(self) -> str:
        """How large the model is, for the log."""
        ...

    def add_rows(self, rows: Sequence[int]) -> None:
        """Adds memory rows."""
        ...

    def solve(self, request: Request, hint: tuple[int, ...] | None) -> Outcome:
        """Solves what the model is now.

        Args:
            request: Deadline, seed, gap.
            hint: Allowed choices to start from.
        """
        ...


MakeRelaxation = Callable[[Problem], Relaxation]


def solve_lazily(
    problem: Problem,
    request: Request,
    make_relaxation: MakeRelaxation,
    first_rows: Sequence[int] = (),
) -> Answer:
    """Runs a relaxation until no memory row is violated, or until the request is over.

    Args:
        problem: Times in it are row numbers.
        request: As given to an engine.
        make_relaxation: Builds the model without memory rows.
        first_rows: Memory rows to begin with.
    """
    if not problem.num_nodes:
        return Answer(choices=(), lower_bound=0)
    return _LazySolve(problem, request, make_relaxation).run(first_rows)


class _LazySolve:
    def __init__(self, problem: Problem, request: Request, make_relaxation: MakeRelaxation) -> None:
        self.problem = problem
        self.request = request
        self.make_relaxation = make_relaxation
        self.use = RowUse(problem, num_rows_of(problem))
        self.best: tuple[int, ...] | None = None
        self.best_cost: int | None = None
        self.lower_bound = request.lower_bound
        self.log: list[str] = []
        for hint in request.hints:
            self.offer(tuple(int(choice) for choice in hint))

    def offer(self, choices: tuple[int, ...]) -> bool:
        found = evaluate(self.problem, choices)
        if found.is_allowed and (self.best_cost is None or found.cost < self.best_cost):
            self.best, self.best_cost = choices, found.cost
        return found.is_allowed

    def run(self, first_rows: Sequence[int]) -> Answer:
        relaxation = self.make_relaxation(self.problem)
        self.log.append(relaxation.size)
        rows = list(first_rows) if self.problem.memory_limit is not None else []
        relaxation.add_rows(rows)
        while not self.request.is_over():
            cost, known = self.request.known()
            if known is not None and (self.best_cost is None or (cost or 0) < self.best_cost):
                self.offer(known)
            outcome = relaxation.solve(self.request, self.best)
            self.log.append(f"{outcome.log} with {len(rows)} memory rows")
            if outcome.is_infeasible:
                return self.nothing_left(rows)
            self.lower_bound = max(self.lower_bound, outcome.lower_bound)
            if outcome.choices is None:
                break
            if self.offer(outcome.choices):
                self.polish(outcome.choices)
                if outcome.is_proven and self.best_cost is not None:
                    self.lower_bound = max(self.lower_bound, self.best_cost)
                break
            self.tell()
            limit = self.problem.memory_limit or 0
            added = rows_to_add(self.use.held(outcome.choices), limit, rows)
            if not added:
                break
            rows += added
            relaxation.add_rows(added)
            self.log.append(f"memory rows {added} were violated and are added")
        self.tell()
        return self.answer()

    def polish(self, choices: tuple[int, ...]) -> None:
        """Engines stop within their tolerances; single moves in integers gain what that left."""
        local = LocalSearch(self.problem, num_rows_of(self.problem))
        moved = local.improved(choices, deadline=self.request.deadline)
        self.offer(tuple(int(choice) for choice in moved))

    def tell(self) -> None:
        self.request.tell("exact", self.best, self.best_cost, self.lower_bound)

    def answer(self) -> Answer:
        if self.best_cost is not None:
            self.lower_bound = min(self.lower_bound, self.best_cost)
        return Answer(choices=self.best, lower_bound=self.lower_bound, log=tuple(self.log))

    def nothing_left(self, rows: list[int]) -> Answer:
        """The rows leave nothing: proven infeasible, or that nothing is cheaper than the best."""
        if self.best_cost is not None:
            self.lower_bound = self.best_cost
            return self.answer()
        return Answer(
            choices=None,
            lower_bound=self.lower_bound,
            is_infeasible=True,
            clashing_rows=self.clashing(rows),
            log=tuple(self.log),
        )

    def clashing(self, rows: list[int]) -> tuple[int, ...]:
        """Leaves rows out one by one while the others alone still leave nothing."""
        needed = list(rows)
        for row in rows:
            if len(needed) == 1 or self.request.is_over():
                break
            fewer = [other for other in needed if other != row]
            relaxation = self.make_relaxation(self.problem)
            relaxation.add_rows(fewer)
            if relaxation.solve(self.request, None).is_infeasible:
                needed = fewer
        return tuple(sorted(needed))
