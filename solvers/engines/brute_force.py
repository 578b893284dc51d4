"""Tries everything: the oracle of the tests."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from solvers.engines.protocol import Answer, Request
from solvers.errors import EngineError
from solvers.evaluate import evaluate
from solvers.problem import FORBIDDEN, Problem
from solvers.saturating import FORBIDDEN_FROM


@dataclass(frozen=True, slots=True)
class BruteForce:
    """Evaluates every combination of choices; of equal ones the first wins.

    Args:
        most_combinations: Refuse more than this.
    """

    most_combinations: int = 2_000_000

    @property
    def name(self) -> str:
        return "brute_force"

    @property
    def is_polling(self) -> bool:
        return True

    def solve(self, problem: Problem, request: Request) -> Answer:
        """Returns the best of all combinations.

        Raises:
            EngineError: There are too many.
        """
        sizes = [len(costs) for costs in problem.node_costs]
        count = math.prod(sizes)
        if count > self.most_combinations:
            raise EngineError(
                f"{count} combinations are left, more than {self.most_combinations}",
                where="engine brute_force",
                fix='choose engine="auto"',
            )
        best: tuple[int, ...] | None = None
        best_cost = 0
        leanest: tuple[int, ...] | None = None
        least_peak = 0
        for choices in itertools.product(*map(range, sizes)):
            if request.is_over():
                return Answer(choices=best, least_peak_choices=leanest, log=("out of time",))
            found = evaluate(problem, choices)
            if found.is_allowed and (best is None or found.cost < best_cost):
                best, best_cost = choices, found.cost
            is_finite = found.is_allowed or _is_finite(problem, choices)
            if is_finite and (leanest is None or found.peak < least_peak):
                leanest, least_peak = choices, found.peak
        return Answer(
            choices=best,
            lower_bound=best_cost if best is not None else FORBIDDEN,
            is_infeasible=best is None,
            least_peak_choices=leanest,
            least_peak_bound=least_peak,
            log=(f"tried all {count} combinations",),
        )


def _is_finite(problem: Problem, choices: tuple[int, ...]) -> bool:
    return all(
        costs[choice] < FORBIDDEN_FROM
        for costs, choice in zip(problem.node_costs, choices, strict=True)
    ) and all(
        edge.costs[choices[edge.u], choices[edge.v]] < FORBIDDEN_FROM for edge in problem.edges
    )
