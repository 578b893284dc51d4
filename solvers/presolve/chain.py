"""All reductions one after the other, as one step with one way back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from solvers.presolve.fitting import drop_unfitting
from solvers.presolve.low_degree import LowDegree, eliminate_low_degree
from solvers.presolve.presolve import Presolved, never, presolve
from solvers.presolve.rules import ALL_RULES, Rule
from solvers.problem import Problem
from solvers.restricted import Restricted
from solvers.way_back import reduce_through, restore_through


@dataclass(frozen=True, slots=True, eq=False)
class Reduced:
    """The smallest pairwise problem the reductions reach.

    Args:
        problem: Times are row numbers.
        constant: What the original costs beyond it.
        row_times: A time of the original for every row.
        is_infeasible: Forbidden costs alone leave no answer.
        steps: The reductions, first one first.
        has_dropped_unfitting: Choices went that cannot fit. Where nothing fits, what this problem
            says of the smallest peak is then true only up to the limit.
    """

    problem: Problem
    constant: int
    row_times: tuple[int, ...]
    is_infeasible: bool
    steps: tuple[Presolved | LowDegree | Restricted, ...]
    has_dropped_unfitting: bool = False

    def restore(self, choices: Sequence[int]) -> tuple[int, ...]:
        """Turns choices of the reduced problem into choices of the original."""
        return restore_through(self.steps, choices)

    def reduce(self, choices: Sequence[int]) -> tuple[int, ...]:
        """Turns choices of the original into near ones of the reduced problem."""
        return reduce_through(self.steps, choices)


def reduce_fully(
    problem: Problem,
    *,
    use_memory: bool = True,
    rules: Sequence[Rule] = ALL_RULES,
    drops_unfitting: bool = True,
    is_over: Callable[[], bool] = never,
) -> Reduced:
    """Presolves, drops what cannot fit, eliminates low degrees; repeats while something goes.

    Args:
        problem: A problem `verify_problem` finds no fault with.
        use_memory: See `presolve`.
        rules: See `presolve`.
        drops_unfitting: False keeps choices that cannot fit, to look for the smallest peak.
        is_over: Asked now and then; once true, what is reduced so far is returned.
    """
    steps: list[Presolved | LowDegree | Restricted] = []
    first = presolve(problem, use_memory=use_memory, rules=rules, is_over=is_over)
    steps.append(first)
    constant, row_times, is_infeasible = first.constant, first.row_times, first.is_infeasible
    current = first.problem
    while not is_infeasible and not is_over():
        fitting = drop_unfitting(current) if drops_unfitting else None
        if fitting is not None:
            steps.append(fitting)
            current = fitting.problem
        low = eliminate_low_degree(current)
        is_infeasible |= low.is_infeasible
        has_changed = fitting is not None or low.problem.num_nodes < current.num_nodes
        if not has_changed or is_infeasible:
            break
        again = presolve(low.problem, rules=rules, is_over=is_over)
        steps += [low, again]
        constant += low.constant + again.constant
        is_infeasible |= again.is_infeasible
        row_times = tuple(row_times[row] for row in again.row_times)
        current = again.problem
    has_dropped = any(isinstance(step, Restricted) for step in steps)
    return Reduced(current, constant, row_times, is_infeasible, tuple(steps), has_dropped)
