"""A problem with fewer choices, and the way back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from solvers.problem import Edge, EdgeMemory, IntArray, NodeMemory, Problem

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Restricted:
    """A problem with fewer choices, and the way back.

    Args:
        problem: The same nodes, edges and memory terms, over the choices kept.
        surviving: Original choices per node.
    """

    problem: Problem
    surviving: tuple[IntArray, ...]

    def restore(self, choices: Sequence[int]) -> tuple[int, ...]:
        """Turns choices of the restricted problem into choices of the original."""
        return tuple(
            int(kept[choice]) for kept, choice in zip(self.surviving, choices, strict=True)
        )

    def reduce(self, choices: Sequence[int]) -> tuple[int, ...]:
        """Turns original choices into the restricted problem's; one that is gone becomes 0."""
        reduced = []
        for kept, choice in zip(self.surviving, choices, strict=True):
            at = int(np.searchsorted(kept, choice))
            reduced.append(at if at < len(kept) and kept[at] == choice else 0)
        return tuple(reduced)


def restrict(problem: Problem, keep: Sequence[BoolArray]) -> Restricted:
    """Takes choices out of a problem.

    Args:
        problem: Any problem, with or without memory.
        keep: bool[num_choices] per node, somewhere true at every node.
    """
    surviving = tuple(np.flatnonzero(kept) for kept in keep)
    masks = [kept.tobytes() for kept in keep]
    kept_tables: dict[tuple[int, bytes, bytes], IntArray] = {}

    def table(edge: Edge, costs: IntArray) -> IntArray:
        key = (id(costs), masks[edge.u], masks[edge.v])
        if key not in kept_tables:
            kept_tables[key] = costs.take(surviving[edge.u], 0).take(surviving[edge.v], 1)
        return kept_tables[key]

    smaller = replace(
        problem,
        node_costs=tuple(
            costs[kept] for costs, kept in zip(problem.node_costs, surviving, strict=True)
        ),
        edges=tuple(Edge(edge.u, edge.v, table(edge, edge.costs)) for edge in problem.edges),
        node_memory=tuple(
            NodeMemory(term.node, term.start, term.stop, term.usage[surviving[term.node]])
            for term in problem.node_memory
        ),
        edge_memory=tuple(
            EdgeMemory(
                term.edge, term.start, term.stop, table(problem.edges[term.edge], term.usage)
            )
            for term in problem.edge_memory
        ),
    )
    return Restricted(smaller, surviving)
