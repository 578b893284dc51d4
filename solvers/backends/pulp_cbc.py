"""CBC through PuLP, memory rows added when violated: a second, independent exact backend."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solvers.backends.protocol import Answer, Request
from solvers.errors import BackendError
from solvers.evaluate import evaluate
from solvers.memory_rows import RowUse, num_rows_of, rows_to_add
from solvers.node_edge_model import NodeEdgeModel, build_node_edge_model
from solvers.problem import Problem

_LARGEST_SCALED_COST = 1e6


@dataclass(frozen=True, slots=True)
class PulpCbc:
    """Solves the node-edge model by branch and cut; for up to some ten thousand columns."""

    @property
    def name(self) -> str:
        return "pulp_cbc"

    def solve(self, problem: Problem, request: Request) -> Answer:
        """Solves, adds violated memory rows, and solves again until none is violated."""
        if not problem.num_nodes:
            return Answer(choices=(), lower_bound=0)
        model = build_node_edge_model(problem)
        use = RowUse(problem, num_rows_of(problem))
        rows: list[int] = []
        lower_bound = request.lower_bound
        log = [f"model of {model.num_columns} columns, {len(model.right_hand_sides)} rows"]
        while not request.is_over():
            found = _solve_once(model, rows, request)
            log.append(f"CBC with {len(rows)} memory rows: {found.status}")
            if found.status == "infeasible":
                return Answer(choices=None, is_infeasible=True, log=tuple(log))
            lower_bound = max(lower_bound, found.lower_bound)
            if found.choices is None:
                break
            checked = evaluate(problem, found.choices)
            if checked.is_allowed:
                bound = checked.cost if found.status == "optimal" else lower_bound
                return Answer(
                    choices=found.choices, lower_bound=min(bound, checked.cost), log=tuple(log)
                )
            added = rows_to_add(use.held(found.choices), problem.memory_limit or 0, rows)
            if not added:
                break
            rows += added
        return Answer(choices=None, lower_bound=lower_bound, log=tuple(log))


@dataclass(frozen=True, slots=True)
class _Found:
    status: str
    choices: tuple[int, ...] | None
    lower_bound: int


def _solve_once(model: NodeEdgeModel, rows: list[int], request: Request) -> _Found:
    try:
        import pulp
    except ImportError as error:
        raise BackendError(
            "PuLP cannot be imported", where="backend pulp_cbc", fix="pip install pulp"
        ) from error
    largest = int(model.costs[model.upper_bounds > 0].max(initial=0))
    scale = max(1.0, largest / _LARGEST_SCALED_COST)
    lp = pulp.LpProblem("choices", pulp.LpMinimize)
    variables = [
        lp.add_variable(
            f"x{i}",
            0,
            float(upper),
            pulp.LpInteger if i < model.num_choice_columns else pulp.LpContinuous,
        )
        for i, upper in enumerate(model.upper_bounds)
    ]
    lp.setObjective(
        pulp.LpAffineExpression(
            [(x, float(c) / scale) for x, c in zip(variables, model.costs, strict=True)]
        )
    )
    entries: list[list[tuple[object, float]]] = [[] for _ in model.right_hand_sides]
    for row, column, coefficient in zip(
        model.row_ids, model.column_ids, model.coefficients, strict=True
    ):
        entries[row].append((variables[column], float(coefficient)))
    for terms, right in zip(entries, model.right_hand_sides, strict=True):
        lp.addConstraint(pulp.LpAffineExpression(terms) == float(right))
    for row in rows:
        columns, usages = model.memory_row(row)
        unit = max(1.0, float(usages.max(initial=0)))
        held = [(variables[c], float(u) / unit) for c, u in zip(columns, usages, strict=True)]
        lp.addConstraint(
            pulp.LpAffineExpression(held) <= float(model.problem.memory_limit or 0) / unit
        )
    seconds = request.seconds_left()
    solver = pulp.COIN_CMD(
        path=pulp.PULP_CBC_CMD.pulp_cbc_path,  # the CBC that comes with PuLP
        msg=False,
        threads=1,
        gapRel=request.relative_gap,
        gapAbs=0.0,
        timeLimit=None if seconds is None else max(1.0, seconds),
        options=[f"randomCbcSeed {request.seed % 2**31 + 1}"],
    )
    lp.solve(solver)
    if lp.status in (pulp.LpStatusInfeasible, pulp.LpStatusUndefined):
        return _Found("infeasible", None, 0)
    if lp.status == pulp.LpStatusNotSolved or any(x.value() is None for x in variables):
        return _Found("not solved", None, 0)
    values = np.array([x.value() for x in variables[: model.num_choice_columns]])
    choices = model.choices_of(values)
    # PuLP does not hand CBC's bound on: it is known only where CBC proved optimality.
    is_proven = lp.sol_status == pulp.LpSolutionOptimal and request.relative_gap == 0.0
    return _Found("optimal" if is_proven else "feasible", choices, 0)
