"""HiGHS through OR-Tools MathOpt, memory rows added when violated: the default exact backend."""

from __future__ import annotations

import datetime
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from solvers.backends.protocol import Answer, Request
from solvers.errors import BackendError
from solvers.evaluate import evaluate
from solvers.memory_rows import RowUse, num_rows_of, rows_to_add
from solvers.node_edge_model import NodeEdgeModel, build_node_edge_model
from solvers.problem import Problem

_LARGEST_SCALED_COST = 1e6
_PROVEN_TO = 1e-9  # HiGHS works in double precision; its bound is taken as met below this gap


@dataclass(frozen=True, slots=True)
class MathOptHighs:
    """Solves the node-edge model by branch and cut.

    Args:
        first_rows: Memory rows to put into the model from the start.
    """

    first_rows: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        return "mathopt_highs"

    def solve(self, problem: Problem, request: Request) -> Answer:
        """Solves, adds violated memory rows, and solves again until none is violated."""
        if not problem.num_nodes:
            return Answer(choices=(), lower_bound=0)
        model = build_node_edge_model(problem)
        use = RowUse(problem, num_rows_of(problem))
        rows = list(self.first_rows) if problem.memory_limit is not None else []
        log = [f"model of {model.num_columns} columns, {len(model.right_hand_sides)} rows"]
        best: tuple[int, ...] | None = None
        best_cost: int | None = None
        for hint in request.hints:
            found = evaluate(problem, hint)
            if found.is_allowed and (best_cost is None or found.cost <= best_cost):
                best, best_cost = tuple(int(choice) for choice in hint), found.cost
        lower_bound = request.lower_bound
        while not request.is_over():
            outcome = _solve_once(model, rows, request, best, best_cost)
            log.append(outcome.log)
            if outcome.is_infeasible:
                proven = best_cost if best_cost is not None else lower_bound
                return Answer(
                    choices=best,
                    lower_bound=max(lower_bound, proven),
                    is_infeasible=best is None,
                    log=tuple(log),
                )
            lower_bound = max(lower_bound, outcome.lower_bound)
            if outcome.choices is None:
                break
            found = evaluate(problem, outcome.choices)
            if found.is_allowed:
                if best_cost is None or found.cost <= best_cost:
                    best, best_cost = outcome.choices, found.cost
                if outcome.is_proven:
                    lower_bound = max(lower_bound, min(found.cost, best_cost))
                break
            request.report("exact model", best_cost, lower_bound)
            added = rows_to_add(use.held(outcome.choices), problem.memory_limit or 0, rows)
            if not added:
                break
            rows += added
            log.append(f"memory rows {added} were violated and are added")
        if best_cost is not None:
            lower_bound = min(lower_bound, best_cost)
        return Answer(choices=best, lower_bound=lower_bound, log=tuple(log))


@dataclass(frozen=True, slots=True)
class _Outcome:
    choices: tuple[int, ...] | None
    lower_bound: int
    is_proven: bool
    is_infeasible: bool
    log: str


def _solve_once(
    model: NodeEdgeModel,
    rows: list[int],
    request: Request,
    hint: tuple[int, ...] | None,
    cutoff: int | None,
) -> _Outcome:
    try:
        from ortools.math_opt import model_pb2
        from ortools.math_opt.python import mathopt
    except ImportError as error:
        raise BackendError(
            "OR-Tools cannot be imported",
            where="backend mathopt_highs",
            fix="pip install ortools",
        ) from error
    allowed = model.costs[model.upper_bounds > 0]
    scale = max(1.0, float(allowed.max(initial=0))) / _LARGEST_SCALED_COST
    if cutoff is not None:
        scale = max(1.0, min(scale, cutoff / 1e4))
    proto = _proto(model_pb2, model, rows, scale)
    compiled = mathopt.Model.from_model_proto(proto)
    seconds = request.seconds_left()
    params = mathopt.SolveParameters(
        time_limit=None if seconds is None else datetime.timedelta(seconds=max(0.05, seconds)),
        random_seed=request.seed % 2**31,
        absolute_gap_tolerance=0.0,
        relative_gap_tolerance=request.relative_gap,
    )
    model_params = mathopt.ModelSolveParameters()
    if hint is not None:
        values = model.columns_of(hint)
        at = np.flatnonzero(model.upper_bounds > 0)
        variables = {i: compiled.get_variable(int(i), validate=False) for i in at}
        model_params.solution_hints.append(
            mathopt.SolutionHint(variable_values={variables[i]: float(values[i]) for i in at})
        )
    result = mathopt.solve(
        compiled, mathopt.SolverType.HIGHS, params=params, model_params=model_params
    )
    reason = result.termination.reason
    line = f"HiGHS with {len(rows)} memory rows: {reason.name.lower()}"
    if reason in (
        mathopt.TerminationReason.INFEASIBLE,
        mathopt.TerminationReason.INFEASIBLE_OR_UNBOUNDED,
    ):
        return _Outcome(None, 0, False, True, line)
    bound = result.termination.objective_bounds.dual_bound
    lower_bound = 0
    if math.isfinite(bound):
        lower_bound = max(0, math.ceil(bound * scale * (1 - _PROVEN_TO) - 1e-6))
    if not result.has_primal_feasible_solution():
        return _Outcome(None, lower_bound, False, False, line)
    by_variable = result.variable_values()
    values = np.zeros(model.num_columns)
    for variable, value in by_variable.items():
        values[variable.id] = value
    choices = model.choices_of(values[: model.num_choice_columns])
    is_proven = (
        reason == mathopt.TerminationReason.OPTIMAL
        and result.objective_value() - bound <= _PROVEN_TO * max(1.0, abs(bound))
    )
    return _Outcome(choices, lower_bound, is_proven, False, line)


def _proto(model_pb2: Any, model: NodeEdgeModel, rows: list[int], scale: float) -> Any:
    proto = model_pb2.ModelProto()
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
    lower = [model.right_hand_sides]
    upper = [model.right_hand_sides]
    row_ids, column_ids = [model.row_ids], [model.column_ids]
    coefficients = [model.coefficients]
    next_row = len(model.right_hand_sides)
    for row in rows:
        columns, usages = model.memory_row(row)
        largest = max(1.0, float(usages.max(initial=0)))
        row_ids.append(np.full(len(columns), next_row, dtype=np.int64))
        column_ids.append(columns)
        coefficients.append(usages / largest)
        lower.append(np.array([-np.inf]))
        upper.append(np.array([(model.problem.memory_limit or 0) / largest]))
        next_row += 1
    proto.linear_constraints.ids.extend(range(next_row))
    proto.linear_constraints.lower_bounds.extend(np.concatenate(lower).tolist())
    proto.linear_constraints.upper_bounds.extend(np.concatenate(upper).tolist())
    rows_flat = np.concatenate(row_ids)
    columns_flat = np.concatenate(column_ids)
    values_flat = np.concatenate(coefficients)
    order = np.lexsort((columns_flat, rows_flat))
    proto.linear_constraint_matrix.row_ids.extend(rows_flat[order].tolist())
    proto.linear_constraint_matrix.column_ids.extend(columns_flat[order].tolist())
    proto.linear_constraint_matrix.coefficients.extend(values_flat[order].tolist())
    return proto
