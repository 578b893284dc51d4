"""The one entry point: reduce, pick a backend, solve, restore, recheck."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from solvers.backends.brute_force import BruteForce
from solvers.backends.mathopt_highs import MathOptHighs
from solvers.backends.protocol import Answer, Backend, Request
from solvers.elimination import eliminate, order_elimination
from solvers.errors import BackendError, ProblemError
from solvers.evaluate import evaluate
from solvers.presolve import presolve, reduce_fully
from solvers.problem import Problem, require_problem
from solvers.result import Progress, Result, Status, relative_gap
from solvers.saturating import FORBIDDEN_FROM


def solve(
    problem: Problem,
    *,
    backend: str = "auto",
    time_limit_seconds: float | None = None,
    seed: int = 0,
    relative_gap: float = 0.0,
    hint: Sequence[int] | None = None,
    hints: Sequence[Sequence[int]] = (),
    progress: Callable[[Progress], None] | None = None,
) -> Result:
    require_problem(problem)
    began = time.monotonic()
    stages: dict[str, float] = {}
    log: list[str] = []

    @contextmanager
    def stage(name: str) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            stages[name] = stages.get(name, 0.0) + time.monotonic() - start

    with stage("relaxed presolve"):
        relaxed = presolve(problem, use_memory=False)
    if relaxed.is_infeasible:
        return Result(status=Status.INFEASIBLE, choices=None, cost=None, lower_bound=0, seconds_by_stage=stages)
    small = relaxed.problem
    with stage("elimination"):
        tables = {(e.u, e.v): e.costs for e in small.edges}
        order = order_elimination([len(c) for c in small.node_costs], tables)
        log.append(f"elimination: {small.num_nodes} nodes, kept {len(order.kept)}, entries {order.num_entries}, additions {order.num_additions:.3g}")
        if not order.kept:
            done = eliminate(order, small.node_costs, tables)
            if done.constant >= FORBIDDEN_FROM:
                return Result(status=Status.INFEASIBLE, choices=None, cost=None, lower_bound=0, seconds_by_stage=stages)
            choices = relaxed.restore(done.complete(np.zeros(small.num_nodes, dtype=np.int64)).tolist())
            found = evaluate(problem, choices)
            assert found.cost == done.constant + relaxed.constant
            if found.is_allowed:
                return Result(status=Status.OPTIMAL, choices=choices, cost=found.cost, lower_bound=found.cost, peak=found.peak, peak_time=found.peak_time, backend="elimination", seconds_by_stage=stages, reduced_nodes=small.num_nodes, reduced_columns=small.num_columns, log=tuple(log))
    with stage("presolve"):
        reduced = reduce_fully(problem)
    if reduced.is_infeasible:
        return Result(status=Status.INFEASIBLE, choices=None, cost=None, lower_bound=0, seconds_by_stage=stages)
    log.append(f"reduced to {reduced.problem.num_nodes} nodes, {reduced.problem.num_columns} columns, {len(reduced.row_times)} rows")
    with stage("mathopt_highs"):
        deadline = None if time_limit_seconds is None else began + time_limit_seconds
        answer = MathOptHighs().solve(reduced.problem, Request(deadline=deadline, seed=seed, relative_gap=relative_gap))
    log += answer.log
    if answer.choices is None:
        return Result(status=Status.INFEASIBLE if answer.is_infeasible else Status.NO_SOLUTION, choices=None, cost=None, lower_bound=0, seconds_by_stage=stages, log=tuple(log))
    choices = reduced.restore(answer.choices)
    found = evaluate(problem, choices)
    bound = answer.lower_bound + reduced.constant
    return Result(status=Status.OPTIMAL if bound >= found.cost else Status.FEASIBLE, choices=choices, cost=found.cost, lower_bound=bound, peak=found.peak, peak_time=found.peak_time, backend="mathopt_highs", seconds_by_stage=stages, reduced_nodes=reduced.problem.num_nodes, reduced_columns=reduced.problem.num_columns, log=tuple(log))
