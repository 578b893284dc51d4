"""Several answers that differ from each other: no-good cuts, each a memory limit of its own.

An answer ``a`` is cut off, and with it all that are alike, by one more limit: at a time of its own,
each node ``i`` that again picks ``a[i]`` holds ``weights[i]``, and all of them together may hold at
most ``(1 - least_share) * sum(weights)``. So every solver keeps the cuts, presolve included, and
what it proves of the cut problem is proven of all answers that differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from solvers.errors import ProblemError
from solvers.evaluate import evaluate
from solvers.memory_rows import memory_terms
from solvers.problem import MemoryLimit, NodeMemory, Problem
from solvers.result import Result
from solvers.solve import solve


def solve_k_best(
    problem: Problem,
    num_answers: int,
    *,
    weights: Sequence[int],
    least_share: float,
    most_excess: float,
    known: Sequence[Sequence[int]] = (),
    **options: Any,
) -> tuple[Result, ...]:
    """The best choices, the best that differ from those, and so on.

    Args:
        problem: What to solve.
        num_answers: How many at most, `known` not counted.
        weights: By node, what a different choice counts; 0 for nodes that do not.
        least_share: Of all weights, how much any two answers differ in: above 0, at most 1.
        most_excess: An answer that costs more than this fraction above the best ends the search.
        known: Answers found before: none that is alike is given again.
        **options: Of `solve`, for each.

    Returns:
        In the order found, by rising cost where each is solved to the optimum. Each bound is of the
        answers that differ from all before it. Fewer where no others are allowed or near enough.

    Raises:
        ProblemError: Weights or shares that mean nothing, or as `solve`.
    """
    if len(weights) != problem.num_nodes or min(weights, default=0) < 0 or sum(weights) == 0:
        raise ProblemError(
            f"there are {len(weights)} weights with a sum of {sum(weights)} for "
            f"{problem.num_nodes} nodes",
            where="weights",
            fix="give each node a whole number of at least 0, and some node more",
        )
    if not 0 < least_share <= 1 or not most_excess >= 0:
        raise ProblemError(
            f"answers that differ in a share of {least_share} and cost at most {most_excess} more",
            where="least_share and most_excess",
            fix="use a share above 0 and at most 1, and an excess of at least 0",
        )
    apart = [tuple(one) for one in known]
    told = [evaluate(problem, choices) for choices in apart]
    costs = [one.cost for one in told if one.is_allowed]
    found: list[Result] = []
    while len(found) < num_answers:
        result = solve(without_alike(problem, apart, weights, least_share), **options)
        if result.choices is None or result.cost is None:
            break
        if costs and result.cost > (1 + most_excess) * min(costs):
            break
        own = evaluate(problem, result.choices)
        found.append(replace(result, peak=own.peak, peak_time=own.peak_time))
        apart.append(result.choices)
        costs.append(result.cost)
        if result.is_interrupted:
            break
    return tuple(found)


def without_alike(
    problem: Problem,
    answers: Sequence[Sequence[int]],
    weights: Sequence[int],
    least_share: float,
) -> Problem:
    """The same problem without the answers, and without all that differ from one in too little.

    Args:
        problem: With any limits.
        answers: Choices of all of its nodes.
        weights: By node, what a different choice counts.
        least_share: Of all weights, how much has to differ.
    """
    terms = memory_terms(problem)
    end = max([0, *(t.stop for t in terms), *(lim.stop for lim in problem.memory_limits)])
    limits = list(problem.memory_limits)
    if problem.memory_limit is not None and end:
        limits.append(MemoryLimit(0, end, problem.memory_limit))
    most_alike = sum(weights) - math.ceil(least_share * sum(weights))
    cuts: list[NodeMemory] = []
    for time, answer in enumerate(answers, start=end):
        limits.append(MemoryLimit(time, time + 1, most_alike))
        for node, (choice, weight) in enumerate(zip(answer, weights, strict=True)):
            if weight:
                alike = np.zeros(len(problem.node_costs[node]), dtype=np.int64)
                alike[choice] = weight
                cuts.append(NodeMemory(node, time, time + 1, alike))
    return replace(
        problem,
        node_memory=(*problem.node_memory, *cuts),
        memory_limit=None if limits else problem.memory_limit,
        memory_limits=tuple(limits),
    )
