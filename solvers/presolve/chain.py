"""All reductions one after the other, as one step with one way back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from solvers.presolve.low_degree import LowDegree, eliminate_low_degree
from solvers.presolve.presolve import Presolved, never, presolve
from solvers.presolve.rules import ALL_RULES, Rule
from solvers.problem import Problem


@dataclass(frozen=True, slots=True, eq=False)
class Reduced:
    """The smallest pairwise problem the reductions reach.

    Args:
        problem: Times are row numbers.
        constant: What the original costs beyond it.
        row_times: A time of the original for every row.
        is_infeasible: Forbidden costs alone leave no answer.
        steps: The reductions, first one first.
    """

    problem: Problem
    constant: int
    row_times: tuple[int, ...]
    is_infeasible: bool
    steps: tuple[Presolved | LowDegree, ...]

    def restore(self, choices: Sequence[int]) -> tuple[int, ...]:
        """Turns choices of the reduced problem into choices of the original."""
        restored = tuple(choices)
        for step in reversed(self.steps):
            restored = step.restore(restored)
        return restored

    def reduce(self, choices: Sequence[int]) -> tuple[int, ...]:
        """Turns choices of the original into near ones of the reduced problem."""
        reduced = tuple(choices)
        for step in self.steps:
            reduced = step.reduce(reduced)
        return reduced


def reduce_fully(
    problem: Problem,
    *,
    use_memory: bool = True,
    rules: Sequence[Rule] = ALL_RULES,
    is_over: Callable[[], bool] = never,
) -> Reduced:
    """Presolves, eliminates low degrees, and repeats while nodes disappear.

    Args:
        problem: A problem `verify_problem` finds no fault with.
        use_memory: See `presolve`.
        rules: See `presolve`.
        is_over: Asked now and then; once true, what is reduced so far is returned.
    """
    steps: list[Presolved | LowDegree] = []
    first = presolve(problem, use_memory=use_memory, rules=rules, is_over=is_over)
    steps.append(first)
    constant, row_times, is_infeasible = first.constant, first.row_times, first.is_infeasible
    current = first.problem
    while not is_infeasible and not is_over():
        low = eliminate_low_degree(current)
        is_infeasible |= low.is_infeasible
        if low.problem.num_nodes == current.num_nodes or is_infeasible:
            break
        again = presolve(low.problem, rules=rules, is_over=is_over)
        steps += [low, again]
        constant += low.constant + again.constant
        is_infeasible |= again.is_infeasible
        row_times = tuple(row_times[row] for row in again.row_times)
        current = again.problem
    return Reduced(current, constant, row_times, is_infeasible, tuple(steps))
