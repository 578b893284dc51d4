"""The node-edge model as an OR-Tools MathOpt model, built from arrays; engines over it."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import numpy as np

from solvers.engines.lazy_rows import Outcome
from solvers.engines.protocol import Request
from solvers.errors import EngineError
from solvers.node_edge_model import NodeEdgeModel, build_node_edge_model
from solvers.problem import Problem

LARGEST_SCALED_COST = 1e8
"""Costs are scaled to at most this before they become floating point."""


class MathOptRelaxation:
    """A MathOpt solver with the model inside, rows added as they come.

    Args:
        problem: What is modelled.
        solver: Name of a `mathopt.SolverType`.
        engine: Name for messages.
    """

    def __init__(self, problem: Problem, solver: str, engine: str) -> None:
        try:
            from ortools.math_opt import model_pb2
            from ortools.math_opt.python import mathopt
        except ImportError as error:
            raise EngineError(
                "OR-Tools cannot be imported",
                where=f"engine {engine}",
                fix="pip install ortools",
            ) from error
        self.mathopt: Any = mathopt
        self.engine = engine
        self.model = build_node_edge_model(problem)
        allowed = self.model.costs[self.model.upper_bounds > 0]
        self.scale = max(1.0, float(allowed.max(initial=0)) / LARGEST_SCALED_COST)
        proto = _proto(model_pb2.ModelProto(), self.model, self.scale)
        self.compiled = mathopt.Model.from_model_proto(proto)
        self.solver_type = mathopt.SolverType[solver]
        self.solver: Any = None

    @property
    def size(self) -> str:
        return self.model.size

    def add_rows(self, rows: Sequence[int]) -> None:
        """Adds memory rows, each scaled by its largest usage."""
        for row in rows:
            columns, usages, limit = self.model.scaled_memory_row(row)
            constraint = self.compiled.add_linear_constraint(ub=limit)
            for column, usage in zip(columns.tolist(), usages.tolist(), strict=True):
                variable = self.compiled.get_variable(column, validate=False)
                constraint.set_coefficient(variable, usage)

    def solve(self, request: Request, hint: tuple[int, ...] | None) -> Outcome:
        """Solves the model as it is; later solves reuse the solver where it can take new rows."""
        mathopt = self.mathopt
        seconds = request.seconds_left()
        params = mathopt.SolveParameters(
            time_limit=None if seconds is None else datetime.timedelta(seconds=max(0.05, seconds)),
            random_seed=request.seed % 2**31,
            absolute_gap_tolerance=0.0,
            relative_gap_tolerance=request.relative_gap,
            threads=self._threads(),
            presolve=self._presolve(),
        )
        model_params = mathopt.ModelSolveParameters()
        if hint is not None:
            model_params.solution_hints.append(self._hint(hint))
        try:
            if self.solver is None:
                self.solver = mathopt.IncrementalSolver(self.compiled, self.solver_type)
            result = self.solver.solve(params=params, model_params=model_params)
        except (RuntimeError, ValueError) as error:
            raise EngineError(
                f"the solver failed: {error}",
                where=f"engine {self.engine}",
                fix='choose engine="auto"',
            ) from error
        return self._outcome(result)

    def _threads(self) -> int | None:
        # HiGHS inside MathOpt refuses a number of threads; it takes one anyway.
        return None if self.solver_type is self.mathopt.SolverType.HIGHS else 1

    def _presolve(self) -> Any:
        # SCIP's presolve cuts off optima of models with memory rows; the tests keep one.
        is_scip = self.solver_type is self.mathopt.SolverType.GSCIP
        return self.mathopt.Emphasis.OFF if is_scip else None

    def _hint(self, choices: tuple[int, ...]) -> Any:
        values = self.model.columns_of(choices)
        at = np.flatnonzero(self.model.upper_bounds > 0).tolist()
        return self.mathopt.SolutionHint(
            variable_values={
                self.compiled.get_variable(i, validate=False): float(values[i]) for i in at
            }
        )

    def _outcome(self, result: Any) -> Outcome:
        mathopt = self.mathopt
        reason = result.termination.reason
        line = f"{self.engine}: {reason.name.lower()}"
        if reason in (
            mathopt.TerminationReason.INFEASIBLE,
            mathopt.TerminationReason.INFEASIBLE_OR_UNBOUNDED,
        ):
            return Outcome(is_infeasible=True, log=line)
        bound = result.termination.objective_bounds.dual_bound
        lower_bound = self.model.proven_bound(bound, self.scale)
        if not result.has_primal_feasible_solution():
            return Outcome(lower_bound=lower_bound, log=line)
        values = np.zeros(self.model.num_columns)
        for variable, value in result.variable_values().items():
            values[variable.id] = value
        return Outcome(
            choices=self.model.choices_of(values[: self.model.num_choice_columns]),
            lower_bound=lower_bound,
            log=line,
        )


def _proto(proto: Any, model: NodeEdgeModel, scale: float) -> Any:
    num_columns = model.num_columns
    proto.variables.ids.extend(range(num_columns))
    proto.variables.lower_bounds.extend(np.zeros(num_columns).tolist())
    proto.variables.upper_bounds.extend(model.upper_bounds.tolist())
    integers = np.zeros(num_columns, dtype=bool)
    integers[: model.num_choice_columns] = True
    proto.variables.integers.extend(integers.tolist())
    scaled = model.costs / scale
    paid = np.flatnonzero(scaled)
    proto.objective.linear_coefficients.ids.extend(paid.tolist())
    proto.objective.linear_coefficients.values.extend(scaled[paid].tolist())
    proto.linear_constraints.ids.extend(range(len(model.right_hand_sides)))
    proto.linear_constraints.lower_bounds.extend(model.right_hand_sides.tolist())
    proto.linear_constraints.upper_bounds.extend(model.right_hand_sides.tolist())
    order = np.lexsort((model.column_ids, model.row_ids))
    proto.linear_constraint_matrix.row_ids.extend(model.row_ids[order].tolist())
    proto.linear_constraint_matrix.column_ids.extend(model.column_ids[order].tolist())
    proto.linear_constraint_matrix.coefficients.extend(model.coefficients[order].tolist())
    return proto
