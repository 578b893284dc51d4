"""Costs and memory of nodes by the states of forward ops, while the problem is built."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from solvers import FORBIDDEN, NodeMemory, Problem

IntArray = npt.NDArray[np.int64]

NUM_STATES = 4


@dataclass(slots=True)
class ResidualTables:
    """Costs and memory of nodes by the states of forward ops, changed in place.

    Args:
        node_costs: Of the problem that keeps every residual.
        kept_bytes: Per forward op, what keeping it takes, by node that decides.
        again: Per forward op, picoseconds of computing it again, likewise.
        terms: Memory that nodes hold in any state, by node.
        tables: int64[num_choices, num_states], by node and forward op.
        held: Node, forward op, start and stop of what is held where the op is kept, and its bytes.
    """

    node_costs: list[IntArray]
    kept_bytes: list[list[tuple[int, IntArray]]]
    again: list[list[tuple[int, IntArray]]]
    terms: dict[int, list[NodeMemory]] = field(default_factory=lambda: defaultdict(list))
    tables: dict[tuple[int, int], IntArray] = field(default_factory=dict)
    held: list[tuple[int, int, int, int, IntArray]] = field(default_factory=list)

    @staticmethod
    def of_problem(problem: Problem, num_ops: int) -> ResidualTables:
        """Those of a problem without nodes of forward ops."""
        found = ResidualTables(
            list(problem.node_costs), [[] for _ in range(num_ops)], [[] for _ in range(num_ops)]
        )
        for term in problem.node_memory:
            found.terms[term.node].append(term)
        return found

    def set_costs(self, node: int, costs: IntArray) -> None:
        """Price a node anew where it is allowed."""
        old = self.node_costs[node]
        self.node_costs[node] = np.where(old < FORBIDDEN, costs, old)

    def of(self, node: int, position: int) -> IntArray:
        """Costs of the states of a forward op, by the choices of a node."""
        key = node, position
        if key not in self.tables:
            size = len(self.node_costs[node])
            self.tables[key] = np.zeros((size, NUM_STATES), dtype=np.int64)
        return self.tables[key]

    def keep(self, position: int, node: int, start: int, stop: int, usage: IntArray) -> None:
        """Let a node hold bytes in a stretch of time where a forward op is kept."""
        self.of(node, position)
        self.held.append((node, position, start, stop, usage))
        self.kept_bytes[position].append((node, usage))


def state_column(usage: IntArray, state: int) -> IntArray:
    """Bytes of a node's choices, in one state of a forward op."""
    table = np.zeros((len(usage), NUM_STATES), dtype=np.int64)
    table[:, state] = usage
    return table
