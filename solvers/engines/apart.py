"""Any engine, part by part: what has nothing in common is solved apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from solvers.engines.protocol import Answer, Engine, Request
from solvers.evaluate import evaluate
from solvers.incumbent import Incumbent
from solvers.presolve.components import Part, join_parts, split_into_parts
from solvers.problem import Problem


@dataclass(frozen=True, slots=True)
class Apart:
    """Lets an engine solve each part of a problem on its own, the smallest first.

    Args:
        engine: Solves the parts.
    """

    engine: Engine

    @property
    def name(self) -> str:
        return self.engine.name

    @property
    def is_polling(self) -> bool:
        return self.engine.is_polling

    def solve(self, problem: Problem, request: Request) -> Answer:
        """Returns the parts' answers as one; what is found meanwhile is told as one."""
        parts = split_into_parts(problem)
        if len(parts) == 1:
            return self.engine.solve(problem, request)
        return _Parts(problem, parts, request).solve(self.engine)


class _Parts:
    """Parts being solved one after the other.

    Args:
        problem: The whole.
        parts: Of it.
        request: For the whole.
    """

    def __init__(self, problem: Problem, parts: tuple[Part, ...], request: Request) -> None:
        self._problem = problem
        self._parts = parts
        self._request = request
        self._incumbents = [
            Incumbent(
                deadline=request.deadline,
                seed=request.seed,
                relative_gap=request.relative_gap,
                on_change=self._tell,
                stop=request.is_over,
            )
            for _ in parts
        ]
        self._told: tuple[int | None, int] = (None, 0)
        for hint in request.hints:
            self._take(hint)

    def solve(self, engine: Engine) -> Answer:
        answers = []
        order = sorted(range(len(self._parts)), key=lambda i: self._parts[i].problem.num_columns)
        for i in order:
            part, incumbent = self._parts[i], self._incumbents[i]
            hints = tuple(part.reduce(hint) for hint in self._request.hints)
            answer = engine.solve(
                part.problem, replace(Request.of(incumbent, hints), stop=self._request.is_over)
            )
            answers.append(answer)
            self._settle(part, incumbent, answer)
            if answer.is_infeasible:
                break
        log = (f"{len(self._parts)} parts apart", *(line for a in answers for line in a.log))
        if answers[-1].is_infeasible:
            rows = answers[-1].clashing_rows
            return Answer(choices=None, is_infeasible=True, clashing_rows=rows, log=log)
        bound = max(self._request.lower_bound, self._bound())
        return Answer(choices=self._joined()[1], lower_bound=bound, log=log)

    def _settle(self, part: Part, incumbent: Incumbent, answer: Answer) -> None:
        if answer.choices is not None:
            found = evaluate(part.problem, answer.choices)
            if found.is_allowed:
                incumbent.offer(answer.choices, found.cost)
        incumbent.offer_bound(answer.lower_bound)

    def _take(self, choices: Sequence[int]) -> None:
        """Offers each part its share of choices of the whole."""
        for part, incumbent in zip(self._parts, self._incumbents, strict=True):
            share = part.reduce(choices)
            found = evaluate(part.problem, share)
            if found.is_allowed:
                incumbent.offer(share, found.cost)

    def _bound(self) -> int:
        return sum(incumbent.bound() for incumbent in self._incumbents)

    def _joined(self) -> tuple[int | None, tuple[int, ...] | None]:
        """The best of every part as one; None and None while a part has nothing."""
        cost, chosen = 0, []
        for incumbent in self._incumbents:
            here, choices = incumbent.best()
            if here is None or choices is None:
                return None, None
            cost += here
            chosen.append(choices)
        return cost, join_parts(self._parts, chosen)

    def _tell(self, source: str, cost: int | None, bound: int) -> None:
        del cost, bound
        whole, choices = self._joined()
        told = (whole, self._bound())
        if told != self._told:
            self._told = told
            self._request.tell(source, choices, *told)
