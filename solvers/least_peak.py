"""The least peak any choices have: what proves that a memory limit cannot be met."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from solvers.evaluate import evaluate
from solvers.memory_pricing import Oracle, PeakSearch
from solvers.presolve import STRUCTURAL_RULES, Reduced, reduce_fully
from solvers.problem import FORBIDDEN, Edge, IntArray, Problem
from solvers.saturating import FORBIDDEN_FROM

_LEAST_PEAK_ROUNDS = 30


class LeastPeak:
    """Minimises the peak over all choices without a forbidden cost, after reductions."""

    def __init__(
        self,
        problem: Problem,
        num_rows: int,
        deadline: float | None,
        make_oracle: Callable[[Problem], Oracle | None],
    ) -> None:
        self.problem = problem
        self.num_rows = num_rows
        self.deadline = deadline
        self.make_oracle = make_oracle
        self.lower_bound = 0
        self.peak: int | None = None
        self.choices: tuple[int, ...] | None = None
        self.is_infeasible = False

    def run(self) -> None:
        """Reduces what is left without costs, and weighs its rows."""
        assert self.problem.memory_limit is not None
        reduced = reduce_fully(zero_costs(self.problem), rules=STRUCTURAL_RULES)
        if reduced.is_infeasible:
            self.is_infeasible = True
            return
        if reduced.problem.memory_limit is None:  # whatever is left to choose fits
            self._offer(reduced, np.zeros(reduced.problem.num_nodes, dtype=np.int64))
            return
        oracle = self.make_oracle(reduced.problem)
        if oracle is None:
            return
        search = PeakSearch(reduced.problem, len(reduced.row_times), oracle, self.deadline)
        search.run(_LEAST_PEAK_ROUNDS)
        if search.choices is not None:
            self._offer(reduced, search.choices)
        self.lower_bound = search.lower_bound

    def _offer(self, reduced: Reduced, choices: IntArray) -> None:
        self.choices = reduced.restore(choices.tolist())
        self.peak = evaluate(self.problem, self.choices).peak


def zero_costs(problem: Problem) -> Problem:
    """The same problem with every allowed cost 0: what is left is memory and what is forbidden."""
    tables: dict[int, IntArray] = {}

    def without(costs: IntArray) -> IntArray:
        if id(costs) not in tables:
            tables[id(costs)] = np.where(costs >= FORBIDDEN_FROM, FORBIDDEN, 0).astype(np.int64)
        return tables[id(costs)]

    return replace(
        problem,
        node_costs=tuple(without(costs) for costs in problem.node_costs),
        edges=tuple(Edge(edge.u, edge.v, without(edge.costs)) for edge in problem.edges),
    )
