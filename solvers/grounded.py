"""A reduced problem that pays its own constant, so that relative gaps are those of the original."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from solvers.presolve import Reduced
from solvers.problem import FORBIDDEN, Problem


@dataclass(frozen=True, slots=True, eq=False)
class Grounded:
    """A reduced problem with its constant at a node of its own.

    Args:
        problem: The reduced problem, with the node last where the constant is positive.
        constant: What the original costs beyond it: zero unless negative.
        reduced: The way back.
    """

    problem: Problem
    constant: int
    reduced: Reduced

    @classmethod
    def of(cls, reduced: Reduced) -> Grounded:
        """Adds the node where it is needed."""
        if not 0 < reduced.constant < FORBIDDEN // 8:
            return cls(reduced.problem, reduced.constant, reduced)
        ground = np.array([reduced.constant], dtype=np.int64)
        costs = (*reduced.problem.node_costs, ground)
        return cls(replace(reduced.problem, node_costs=costs), 0, reduced)

    def restore(self, choices: Sequence[int]) -> tuple[int, ...]:
        """Turns choices of this problem into choices of the original."""
        return self.reduced.restore(choices[: self.reduced.problem.num_nodes])

    def reduce(self, choices: Sequence[int]) -> tuple[int, ...]:
        """Turns choices of the original into near ones of this problem."""
        ground = (0,) * (self.problem.num_nodes - self.reduced.problem.num_nodes)
        return (*self.reduced.reduce(choices), *ground)

    def time_of_row(self, row: int) -> int:
        """Returns a time of the original at which a memory row holds."""
        return self.reduced.row_times[row]
