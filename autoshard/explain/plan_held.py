"""A saved plan as an answer to the problem it solves, which planning again gives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autoshard.encoding.picoseconds import PICOSECONDS
from autoshard.graph.program import Op, OpKind
from autoshard.layouts import Layout
from autoshard.planning.pricing import solve_again
from autoshard.planning.searches import SolveOptions
from autoshard.planning.solution import Solution
from autoshard.plans.plan import PlanData
from autoshard.sharding import Sharding
from solvers import FORBIDDEN


def held_to(
    solution: Solution, plan: PlanData, *, time_limit_seconds: float = 60.0
) -> Solution | None:
    """The problem of a solution, solved with every tensor as a plan has it.

    How ops read their operands is decided anew, at the least cost, which may be less than in a plan
    that gave up time for fewer constraints. Tensors for which the problem has no such choice are
    left free.

    Args:
        solution: Of the same program on the same mesh.
        plan: What to hold tensors to.
        time_limit_seconds: For the small solve that is left.

    Returns:
        None where no such plan keeps within the memory limit, or none was found in time.
    """
    encoded = solution.encoded
    asked = _shardings(solution, plan)
    costs = []
    for node, index in enumerate(encoded.ops):
        op, own = solution.graph.ops[index], encoded.problem.node_costs[node]
        wanted = [_layout(solution, op, value, asked) for value in op.results or op.operands]
        fits = np.array(
            [
                all(
                    want is None or want == have
                    for want, have in zip(
                        wanted, candidate.side(is_result=bool(op.results)), strict=True
                    )
                )
                for candidate in encoded.candidates[node]
            ]
        )
        costs.append(np.where(fits, own, FORBIDDEN) if fits.any() else own)
    costs += encoded.problem.node_costs[len(encoded.ops) :]
    problem = replace(encoded.problem, node_costs=tuple(costs))
    options = SolveOptions(time_limit_seconds=time_limit_seconds, relative_gap=0.0)
    result, found = solve_again(solution, problem, options)
    if found is None or not result.status.has_choices:
        return None
    bound = min(round(plan.solver.bound_seconds * PICOSECONDS), result.cost or 0)
    result = replace(result, lower_bound=bound)  # what is proven of the plan, not of this solve
    return replace(found, encoded=encoded, rounds=solution.rounds, result=result)


def _shardings(solution: Solution, plan: PlanData) -> dict[tuple[int, int], Sharding]:
    """What the plan says, by op and value: results may lie otherwise than the values they are."""
    graph = solution.graph
    found: dict[tuple[int, int], Sharding] = {}
    for path, sharding in plan.values.items():
        value = graph.value_by_path.get(path)
        if value is not None:
            found[graph.values[value].op, value] = sharding
    arguments = graph.arguments[graph.num_captured :]
    for op, tensor in zip(arguments, plan.arguments, strict=True):
        found[op.index, op.results[0]] = tensor.sharding
    for op, tensor in zip(graph.results, plan.results, strict=True):
        found[op.index, op.operands[0]] = tensor.sharding
    return found


def _layout(
    solution: Solution, op: Op, value: int, asked: dict[tuple[int, int], Sharding]
) -> Layout | None:
    """The layout that a plan gives a value at an op, or None where it does not say."""
    if op.kind is OpKind.FREE or (op.index, value) not in asked:
        return None
    layout = solution.encoded.parts.to_layout(asked[op.index, value])
    words = len(solution.graph.values[value].shape) - len(layout)  # those of a PRNG key
    return (*layout, *((),) * words)
