"""What another choice at one node means for the nodes around it, in a solved choice problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from solvers import FORBIDDEN, Edge, Problem

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


@dataclass(slots=True, eq=False)
class Neighbourhood:
    """The edges of a problem by node.

    Args:
        problem: The problem; its memory is not looked at.
    """

    problem: Problem
    _edges: list[list[Edge]] = field(init=False)
    _forbids: dict[int, bool] = field(default_factory=dict)  # by id of a cost table

    def __post_init__(self) -> None:
        self._edges = [[] for _ in range(self.problem.num_nodes)]
        for edge in self.problem.edges:
            self._edges[edge.u].append(edge)
            self._edges[edge.v].append(edge)

    def costs(self, node: int, choices: Sequence[int]) -> tuple[FloatArray, Mapping[int, IntArray]]:
        """Cost of every choice of a node and all around it, its neighbours choosing anew.

        All other nodes keep their choices. Neighbours that are neighbours of one another are taken
        to keep theirs as far as one looks at the other.

        Args:
            node: The node.
            choices: Of all nodes.

        Returns:
            float64[num_choices], and by neighbour int64[num_choices]: its best answer to each.
        """
        total = self.problem.node_costs[node].astype(np.float64)
        tables: dict[int, FloatArray] = {}
        for edge in self._edges[node]:
            other = _other(edge, node)
            costs = _from(edge, node).astype(np.float64)
            tables[other] = tables[other] + costs if other in tables else costs
        answers: dict[int, IntArray] = {}
        for other, table in tables.items():
            together = table + self._own_costs(other, choices, but=node)
            answers[other] = together.argmin(axis=1)
            total = total + together.min(axis=1)
        return total, answers

    def _own_costs(self, node: int, choices: Sequence[int], but: int) -> FloatArray:
        """float64[num_choices]: of a node, where all nodes around it keep their choices."""
        total = self.problem.node_costs[node].astype(np.float64)
        for edge in self._edges[node]:
            other = _other(edge, node)
            if other != but:
                total = total + _from(edge, node)[:, choices[other]]
        return total

    def clash(self, node: int, choices: IntArray) -> int | None:
        """A node that is left without any choice where another one has only these.

        Follows forbidden pairs from node to node until nothing more is ruled out.

        Returns:
            The first such node; None where each keeps some choice.
        """
        left = {node: np.isin(np.arange(len(self.problem.node_costs[node])), choices)}
        todo = [node]
        while todo:
            at = todo.pop(0)
            for edge in self._edges[at]:
                if not self._has_forbidden(edge):
                    continue
                other = _other(edge, at)
                allowed = (_from(edge, at)[left[at]] < FORBIDDEN).any(axis=0)
                before = left.get(other)
                if before is None:
                    before = self.problem.node_costs[other] < FORBIDDEN
                after = before & allowed
                if not after.any():
                    return other
                if other not in left or (after != before).any():
                    left[other] = after
                    todo.append(other)
        return None

    def _has_forbidden(self, edge: Edge) -> bool:
        key = id(edge.costs)
        if key not in self._forbids:
            self._forbids[key] = bool((edge.costs >= FORBIDDEN).any())
        return self._forbids[key]


def _other(edge: Edge, node: int) -> int:
    return edge.v if edge.u == node else edge.u


def _from(edge: Edge, node: int) -> IntArray:
    """The costs of an edge with the choices of a node as rows."""
    return edge.costs if edge.u == node else edge.costs.T
