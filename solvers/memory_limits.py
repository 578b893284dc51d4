"""Several memory limits as one: what a lower one lacks is held whatever is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from solvers.memory_rows import memory_terms
from solvers.problem import EdgeMemory, NodeMemory, Problem


@dataclass(frozen=True, slots=True, eq=False)
class OneLimit:
    """An equal problem with `memory_limit` alone, and the way back.

    Args:
        problem: The same nodes and edges; last a node with one choice that holds what the lower
            limits leave out, where there are any.
        num_nodes: Of the original.
    """

    problem: Problem
    num_nodes: int

    def restore(self, choices: Sequence[int]) -> tuple[int, ...]:
        """Leaves the additional node out."""
        return tuple(choices[: self.num_nodes])

    def extend(self, choices: Sequence[int]) -> tuple[int, ...]:
        """Adds the additional node's choice."""
        return (*choices, *(0,) * (self.problem.num_nodes - self.num_nodes))


def with_one_limit(problem: Problem) -> OneLimit:
    """Turns limits for some times into one for all, equal in what it allows.

    The one limit is the highest. Over each stretch of time with a lower one the difference is held
    as well; over stretches without any limit nothing is.
    """
    if not problem.memory_limits:
        return OneLimit(problem, problem.num_nodes)
    most = max([limit.limit for limit in problem.memory_limits] + [problem.memory_limit or 0])
    terms = memory_terms(problem)
    moments = sorted(
        {moment for item in (*terms, *problem.memory_limits) for moment in (item.start, item.stop)}
    )
    ballast = problem.num_nodes
    held: list[NodeMemory] = []
    unlimited: list[tuple[int, int]] = []
    for start, stop in pairwise(moments):
        allowed = [lim.limit for lim in problem.memory_limits if lim.start <= start < lim.stop]
        if problem.memory_limit is not None:
            allowed.append(problem.memory_limit)
        if not allowed:
            unlimited.append((start, stop))
        elif min(allowed) < most:
            lacking = np.array([most - min(allowed)], dtype=np.int64)
            held.append(NodeMemory(ballast, start, stop, lacking))
    one = replace(
        problem,
        node_costs=(*problem.node_costs, np.zeros(1, dtype=np.int64)),
        node_memory=(
            *(
                NodeMemory(term.node, start, stop, term.usage)
                for term in problem.node_memory
                for start, stop in _outside(term, unlimited)
            ),
            *held,
        ),
        edge_memory=tuple(
            EdgeMemory(term.edge, start, stop, term.usage)
            for term in problem.edge_memory
            for start, stop in _outside(term, unlimited)
        ),
        memory_limit=most,
        memory_limits=(),
    )
    return OneLimit(one, problem.num_nodes)


def _outside(
    term: NodeMemory | EdgeMemory, unlimited: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Returns the parts of a term's interval that lie outside ascending stretches."""
    parts = []
    start = term.start
    for free_from, free_to in unlimited:
        if free_to <= start or free_from >= term.stop:
            continue
        if start < free_from:
            parts.append((start, free_from))
        start = free_to
    if start < term.stop:
        parts.append((start, term.stop))
    return parts
