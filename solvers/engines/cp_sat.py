"""CP-SAT through OR-Tools, on the pairs of choices as tables: the engine of constraint programming.

Formula: a boolean per choice, exactly one per node; a boolean per allowed pair of choices of an
edge, exactly one per edge, each implying its two choices; costs and memory rows over them, all in
integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from solvers.engines.lazy_rows import Outcome, solve_lazily
from solvers.engines.protocol import Answer, Request
from solvers.errors import EngineError
from solvers.node_edge_model import build_node_edge_model
from solvers.problem import Problem

_LARGEST_OBJECTIVE = 2**60
"""CP-SAT refuses objectives that may overflow; costs are scaled down to keep clear of that."""


@dataclass(frozen=True, slots=True)
class CpSat:
    """Solves by conflicts and linear relaxations; exact in integers up to its scaling of costs."""

    @property
    def name(self) -> str:
        return "cp_sat"

    @property
    def is_polling(self) -> bool:
        return False

    def solve(self, problem: Problem, request: Request) -> Answer:
        """Solves, adds violated memory rows, and solves again until none is violated."""
        return solve_lazily(problem, request, _CpSatEngine)


class _CpSatEngine:
    def __init__(self, problem: Problem) -> None:
        try:
            from ortools.sat.python import cp_model
        except ImportError as error:
            raise EngineError(
                "OR-Tools cannot be imported", where="engine cp_sat", fix="pip install ortools"
            ) from error
        self.cp_model: Any = cp_model
        self.model = build_node_edge_model(problem)
        model = cp_model.CpModel()
        self.columns = [model.new_bool_var("") for _ in range(self.model.num_columns)]
        for i in np.flatnonzero(self.model.upper_bounds == 0).tolist():
            model.add(self.columns[i] == 0)
        offsets = self.model.node_offsets.tolist()
        for start, stop in pairwise(offsets):
            model.add_exactly_one(self.columns[start:stop])
        self.cp = model
        for e, edge in enumerate(problem.edges):
            start = int(self.model.edge_offsets[e])
            pairs = self.model.pairs[e]
            columns = self.columns[start : start + len(pairs)]
            s, t = np.divmod(pairs, edge.costs.shape[1])
            self._link(columns, s, offsets[edge.u], edge.costs.shape[0])
            self._link(columns, t, offsets[edge.v], edge.costs.shape[1])
        total = sum(self.model.costs.tolist())
        self.unit = max(1, -(-total // _LARGEST_OBJECTIVE))
        model.minimize(
            cp_model.LinearExpr.weighted_sum(self.columns, (self.model.costs // self.unit).tolist())
        )

    def _link(self, columns: list[Any], choice: Any, offset: int, count: int) -> None:
        """A pair's column is one exactly where its choice is: one pair for each choice taken."""
        by_choice: list[list[Any]] = [[] for _ in range(count)]
        for column, s in zip(columns, choice.tolist(), strict=True):
            by_choice[s].append(column)
        for s, group in enumerate(by_choice):
            self.cp.add(sum(group) == self.columns[offset + s])

    @property
    def size(self) -> str:
        return f"model of {self.model.num_columns} columns"

    def add_rows(self, rows: Sequence[int]) -> None:
        limit = self.model.problem.memory_limit or 0
        for row in rows:
            columns, usages = self.model.memory_row(row)
            held = self.cp_model.LinearExpr.weighted_sum(
                [self.columns[i] for i in columns.tolist()], usages.astype(np.int64).tolist()
            )
            self.cp.add(held <= limit)

    def solve(self, request: Request, hint: tuple[int, ...] | None) -> Outcome:
        cp_model = self.cp_model
        solver = cp_model.CpSolver()
        seconds = request.seconds_left()
        if seconds is not None:
            solver.parameters.max_time_in_seconds = max(0.05, seconds)
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = request.seed % 2**31
        solver.parameters.relative_gap_limit = request.relative_gap
        self.cp.clear_hints()
        if hint is not None:
            values = self.model.columns_of(hint).astype(int).tolist()
            for column, value in zip(self.columns, values, strict=True):
                self.cp.add_hint(column, value)
        status = solver.solve(self.cp)
        line = f"CP-SAT: {solver.status_name(status).lower()}"
        if status == cp_model.INFEASIBLE:
            return Outcome(is_infeasible=True, log=line)
        if status == cp_model.MODEL_INVALID:
            raise EngineError(
                f"the model is refused: {self.cp.validate()}",
                where="engine cp_sat",
                fix='choose engine="auto"',
            )
        lower_bound = self.model.offset + max(0, round(solver.best_objective_bound)) * self.unit
        if status == cp_model.UNKNOWN:
            return Outcome(lower_bound=lower_bound, log=line)
        values = np.array([solver.value(x) for x in self.columns[: self.model.num_choice_columns]])
        is_proven = status == cp_model.OPTIMAL and self.unit == 1 and request.relative_gap == 0
        choices = self.model.choices_of(values.astype(np.float64))
        return Outcome(choices=choices, lower_bound=lower_bound, is_proven=is_proven, log=line)
