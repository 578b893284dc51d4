"""Any backend, part by part: what has nothing in common is solved apart."""

from __future__ import annotations

from dataclasses import dataclass

from solvers.backends.protocol import Answer, Backend, Request
from solvers.evaluate import evaluate
from solvers.presolve.components import Part, join_parts, split_into_parts
from solvers.problem import Problem


@dataclass(frozen=True, slots=True)
class Apart:
    """Lets a backend solve each part of a problem on its own.

    Args:
        backend: Solves the parts.
    """

    backend: Backend

    @property
    def name(self) -> str:
        return self.backend.name

    @property
    def is_polling(self) -> bool:
        return self.backend.is_polling

    def solve(self, problem: Problem, request: Request) -> Answer:
        """Returns the parts' answers as one."""
        parts = split_into_parts(problem)
        if len(parts) == 1:
            return self.backend.solve(problem, request)
        answers = [self._solve_part(part, request) for part in parts]
        log = (f"{len(parts)} parts apart", *(line for a in answers for line in a.log))
        if any(answer.is_infeasible for answer in answers):
            rows = tuple(row for answer in answers for row in answer.clashing_rows)
            return Answer(choices=None, is_infeasible=True, clashing_rows=rows, log=log)
        chosen = [answer.choices for answer in answers]
        bound = max(request.lower_bound, sum(answer.lower_bound for answer in answers))
        choices = None
        if all(one is not None for one in chosen):
            choices = join_parts(parts, [one for one in chosen if one is not None])
        for hint in request.hints:
            choices = _cheaper(problem, choices, tuple(int(choice) for choice in hint))
        return Answer(choices=choices, lower_bound=bound, log=log)

    def _solve_part(self, part: Part, request: Request) -> Answer:
        hints = tuple(part.reduce(hint) for hint in request.hints)
        return self.backend.solve(part.problem, request.for_part(hints=hints))


def _cheaper(
    problem: Problem, first: tuple[int, ...] | None, second: tuple[int, ...]
) -> tuple[int, ...] | None:
    found = evaluate(problem, second)
    if not found.is_allowed:
        return first
    return second if first is None or found.cost < evaluate(problem, first).cost else first
