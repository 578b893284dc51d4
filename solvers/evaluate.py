"""The referee: exact cost and peak memory of given choices, in Python integers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from solvers.errors import ProblemError
from solvers.problem import FORBIDDEN, Problem


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What given choices cost and hold.

    Args:
        cost: Sum of the picked node and edge costs, exact even where forbidden ones are picked.
        peak: The most bytes held at one time; 0 where nothing is held.
        peak_time: The first time the peak is held; 0 where nothing is held.
        is_allowed: No forbidden cost is picked and no memory limit is passed at any time.
    """

    cost: int
    peak: int
    peak_time: int
    is_allowed: bool


def evaluate(problem: Problem, choices: Sequence[int]) -> Evaluation:
    """Adds up what `choices` cost and finds the peak of the memory they hold.

    Args:
        problem: A problem `verify_problem` finds no fault with.
        choices: One index per node.

    Raises:
        ProblemError: The number of choices is wrong or one is out of its node's range.
    """
    if len(choices) != problem.num_nodes:
        raise ProblemError(
            f"{len(choices)} choices given, expected one per node: {problem.num_nodes}",
            where="choices",
        )
    cost = 0
    has_forbidden = False
    for node, (costs, choice) in enumerate(zip(problem.node_costs, choices, strict=True)):
        if not 0 <= choice < len(costs):
            raise ProblemError(
                f"is {choice}, node {node} has {len(costs)} choices", where=f"choices[{node}]"
            )
        paid = costs.item(choice)
        has_forbidden |= paid >= FORBIDDEN
        cost += paid
    for edge in problem.edges:
        paid = edge.costs.item(choices[edge.u], choices[edge.v])
        has_forbidden |= paid >= FORBIDDEN
        cost += paid
    peak, peak_time, fits = _peak(problem, choices)
    return Evaluation(cost, peak, peak_time, fits and not has_forbidden)


def _peak(problem: Problem, choices: Sequence[int]) -> tuple[int, int, bool]:
    change_at: dict[int, int] = {}

    def hold(start: int, stop: int, held: int) -> None:
        if held and start < stop:
            change_at[start] = change_at.get(start, 0) + held
            change_at[stop] = change_at.get(stop, 0) - held

    for term in problem.node_memory:
        hold(term.start, term.stop, term.usage.item(choices[term.node]))
    for pair in problem.edge_memory:
        edge = problem.edges[pair.edge]
        hold(pair.start, pair.stop, pair.usage.item(choices[edge.u], choices[edge.v]))
    for limit in problem.memory_limits:
        change_at.setdefault(limit.start, 0)
    peak = peak_time = held = 0
    fits = True
    for time in sorted(change_at):
        held += change_at[time]
        if held > peak:
            peak, peak_time = held, time
        fits = fits and all(
            held <= limit.limit
            for limit in problem.memory_limits
            if limit.start <= time < limit.stop
        )
    if problem.memory_limit is not None:
        fits = fits and peak <= problem.memory_limit
    return peak, peak_time, fits
