"""The node-edge model as a PuLP problem; the relaxation over it that PuLP's solvers share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from solvers.engines.lazy_rows import Outcome
from solvers.engines.protocol import Request
from solvers.errors import EngineError
from solvers.node_edge_model import build_node_edge_model
from solvers.problem import Problem

_LARGEST_SCALED_COST = 1e6
_LEAST_IMPROVEMENT = 1e-4

MakeSolver = Callable[[Any, Request], Any]
"""Makes a PuLP solver from the module `pulp` and a request."""


class PulpRelaxation:
    """A PuLP problem that memory rows are added to; solved from scratch each time.

    Args:
        problem: What is modelled.
        engine: Name for messages.
        make_solver: See `MakeSolver`.
    """

    def __init__(self, problem: Problem, engine: str, make_solver: MakeSolver) -> None:
        try:
            import pulp
        except ImportError as error:
            raise EngineError(
                "PuLP cannot be imported", where=f"engine {engine}", fix="pip install pulp"
            ) from error
        self.pulp: Any = pulp
        self.engine = engine
        self.make_solver = make_solver
        self.model = model = build_node_edge_model(problem)
        largest = int(model.costs[model.upper_bounds > 0].max(initial=0))
        self.scale = max(1.0, largest / _LARGEST_SCALED_COST)
        self.lp = pulp.LpProblem("choices", pulp.LpMinimize)
        self.variables = [
            self.lp.add_variable(
                f"x{i}",
                0,
                float(upper),
                pulp.LpInteger if i < model.num_choice_columns else pulp.LpContinuous,
            )
            for i, upper in enumerate(model.upper_bounds)
        ]
        self.lp.setObjective(self._sum(zip(self.variables, model.costs / self.scale, strict=True)))
        entries: list[list[tuple[Any, float]]] = [[] for _ in model.right_hand_sides]
        for row, column, coefficient in zip(
            model.row_ids, model.column_ids, model.coefficients, strict=True
        ):
            entries[row].append((self.variables[column], float(coefficient)))
        for terms, right in zip(entries, model.right_hand_sides, strict=True):
            self.lp.addConstraint(pulp.LpAffineExpression(terms) == float(right))

    def _sum(self, terms: Any) -> Any:
        return self.pulp.LpAffineExpression([(x, float(factor)) for x, factor in terms])

    @property
    def size(self) -> str:
        return self.model.size

    def add_rows(self, rows: Sequence[int]) -> None:
        """Adds memory rows, each scaled by its largest usage."""
        for row in rows:
            columns, usages, limit = self.model.scaled_memory_row(row)
            variables = [self.variables[column] for column in columns]
            held = self._sum(zip(variables, usages, strict=True))
            self.lp.addConstraint(held <= limit)

    def solve(self, request: Request, hint: tuple[int, ...] | None) -> Outcome:
        """Solves what the problem is now."""
        pulp = self.pulp
        if hint is not None:
            for variable, value in zip(self.variables, self.model.columns_of(hint), strict=True):
                variable.setInitialValue(float(value))
        try:
            self.lp.solve(self.make_solver(pulp, request))
        except pulp.PulpSolverError as error:
            raise EngineError(
                f"the solver failed: {error}",
                where=f"engine {self.engine}",
                fix='choose engine="auto"',
            ) from error
        line = f"{self.engine}: {pulp.LpStatus[self.lp.status].lower()}"
        if self.lp.status == pulp.LpStatusInfeasible:
            return Outcome(is_infeasible=True, log=line)
        if self.lp.sol_status not in (
            pulp.LpSolutionOptimal,
            pulp.LpSolutionIntegerFeasible,
        ) or any(variable.value() is None for variable in self.variables):
            return Outcome(log=line)
        count = self.model.num_choice_columns
        values = np.array([variable.value() for variable in self.variables[:count]])
        lower_bound = 0
        if self.lp.sol_status == pulp.LpSolutionOptimal and request.relative_gap == 0.0:
            # PuLP hands no bound on: where optimality was proven it is the objective, to within
            # the amount by which CBC asks a better answer to be better.
            reached = pulp.value(self.lp.objective) - _LEAST_IMPROVEMENT
            lower_bound = self.model.proven_bound(reached, self.scale)
        return Outcome(choices=self.model.choices_of(values), lower_bound=lower_bound, log=line)
