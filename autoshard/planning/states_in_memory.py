"""Plans for new states that have no room on the chip."""

from __future__ import annotations

from dataclasses import replace

from autoshard.lowering.optimizer_outputs import OptimizerOutputs
from autoshard.planning.room_for_gaps import with_room_for_gaps
from autoshard.planning.searches import Searches
from autoshard.planning.solution import Solution, as_answer, solution_of

_WORTHWHILE = 0.01  # of the time planned, for another solve


def with_states_in_memory(solution: Solution, searches: Searches) -> Solution:
    """The better plan of two, where new states are more than what the chip has room for.

    What is past that room is written to device memory, and one byte more takes all of its time. So
    one more plan is asked for in which all states are written there.
    """
    planned = solution.estimate.blocking_seconds
    is_little = solution.seconds_off_chip <= _WORTHWHILE * planned
    if is_little or not solution.is_feasible or searches.is_over:
        return solution
    states = OptimizerOutputs.of(solution.encoder, solution.decoded)
    problem = replace(solution.encoded.problem, node_costs=states.costs_in_memory(solution.encoded))
    result = searches.another(problem, solution.choices)
    if result.choices is None:
        return solution
    with searches.stages.time("account"):
        answer = as_answer(solution, result, result.choices, searches.options.relative_gap)
        other = solution_of(solution.encoder, solution.encoded, answer)
    other = with_room_for_gaps(other, searches)
    is_better = other.is_feasible and other.step_seconds < solution.step_seconds
    return other if is_better else solution
