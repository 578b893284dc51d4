"""Exact dynamic programming along an elimination order; memory through prices only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solvers.elimination import LARGEST_WORK, eliminate, order_elimination
from solvers.engines.protocol import Answer, Request
from solvers.errors import EngineError
from solvers.memory_rows import num_rows_of
from solvers.problem import Problem
from solvers.saturating import FORBIDDEN_FROM
from solvers.within_memory import WithinMemory


@dataclass(frozen=True, slots=True)
class Elimination:
    """Proves the optimum where no memory row binds, else a bound and answers near it.

    Args:
        largest_work: Refuse problems whose elimination takes more additions.
    """

    largest_work: float = LARGEST_WORK

    @property
    def name(self) -> str:
        return "elimination"

    @property
    def is_polling(self) -> bool:
        return True

    def solve(self, problem: Problem, request: Request) -> Answer:
        """Eliminates without the limit; prices memory if the answer does not fit.

        Raises:
            EngineError: The problem is too wide.
        """
        order = order_elimination(
            [len(costs) for costs in problem.node_costs],
            [(edge.u, edge.v) for edge in problem.edges],
            largest_work=self.largest_work,
        )
        if order.kept:
            raise EngineError(
                f"{len(order.kept)} nodes are joined too widely to be eliminated",
                where="engine elimination",
                fix='choose engine="auto"',
            )
        tables = {(edge.u, edge.v): edge.costs for edge in problem.edges}
        done = eliminate(order, problem.node_costs, tables)
        if done.constant >= FORBIDDEN_FROM:
            return Answer(choices=None, is_infeasible=True, log=("every answer is forbidden",))
        best = done.complete(np.zeros(problem.num_nodes, dtype=np.int64))
        choices = tuple(best.tolist())
        log = (f"eliminated with {order.num_additions} additions",)
        if problem.memory_limit is None:
            return Answer(choices=choices, lower_bound=done.constant, log=log)
        within = WithinMemory(
            problem,
            num_rows_of(problem),
            Request(
                deadline=request.deadline,
                seed=request.seed,
                relative_gap=request.relative_gap,
                hints=(choices, *request.hints),
                lower_bound=max(done.constant, request.lower_bound),
                report=request.report,
            ),
            None,
            is_elimination_only=True,
        ).run()
        return Answer(
            choices=within.choices,
            lower_bound=within.lower_bound,
            is_infeasible=within.is_infeasible,
            least_peak_choices=within.least_peak_choices,
            least_peak_bound=within.least_peak_bound,
            log=(*log, *within.log),
        )
