"""Checkmate's integer program: when to compute, and keep, every value of a training step.

Source: Jain et al. (2020), "Checkmate: Breaking the Memory Wall with Optimal Tensor
Rematerialization", sections 4.2 to 4.8: stages that each compute one value for the first time.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator
from dataclasses import dataclass

from ortools.math_opt.python import mathopt


@dataclass(frozen=True, slots=True)
class StepGraph:
    """Values of a step in the order in which they are first computed.

    Args:
        costs: Of computing each once, in seconds.
        sizes: Bytes of each.
        scratch: Bytes that computing each takes beside it, meanwhile.
        operands: By value, those that it is computed from.
        constant_bytes: Of what is there all the time.
    """

    costs: tuple[float, ...]
    sizes: tuple[int, ...]
    scratch: tuple[int, ...]
    operands: tuple[tuple[int, ...], ...]
    constant_bytes: int

    @property
    def num_values(self) -> int:
        return len(self.costs)

    @property
    def users(self) -> list[list[int]]:
        """By value, those computed from it, in order."""
        found: list[list[int]] = [[] for _ in self.costs]
        for value, operands in enumerate(self.operands):
            for operand in operands:
                found[operand].append(value)
        return found

    def peak_keeping_all(self) -> int:
        """Most bytes at one time where every value is computed once, and freed after its users."""
        last = [max(users, default=value) for value, users in enumerate(self.users)]
        return self.constant_bytes + max(
            sum(size for i, size in enumerate(self.sizes[: t + 1]) if last[i] >= t)
            + self.scratch[t]
            for t in range(self.num_values)
        )


@dataclass(frozen=True, slots=True)
class Schedule:
    """The answer of the integer program.

    Args:
        seconds: Of all that is computed in a step; None where nothing was found.
        bound: No schedule within the budget takes less.
        is_infeasible: It is proven that none fits.
        solve_seconds: That the solver took.
    """

    seconds: float | None
    bound: float
    is_infeasible: bool
    solve_seconds: float


def solve(
    graph: StepGraph,
    budget: int,
    *,
    time_limit_seconds: float,
    relative_gap: float = 0.001,
    solver: mathopt.SolverType = mathopt.SolverType.HIGHS,
) -> Schedule:
    """The schedule within a budget of bytes that computes least."""
    model, n = mathopt.Model(), graph.num_values
    run = [[model.add_binary_variable() for _ in range(t + 1)] for t in range(n)]
    kept = [[model.add_binary_variable() for _ in range(t)] for t in range(n)]
    for t in range(n):
        model.add_linear_constraint(run[t][t] == 1)
        for value in range(t + 1):
            for operand in graph.operands[value]:
                held = kept[t][operand] if operand < t else 0
                model.add_linear_constraint(run[t][value] <= run[t][operand] + held)
        for value in range(t):
            before = kept[t - 1][value] if value < t - 1 else 0
            model.add_linear_constraint(kept[t][value] <= run[t - 1][value] + before)
    unit = max(graph.sizes)
    room = (budget - graph.constant_bytes) / unit
    sizes = [size / unit for size in graph.sizes]
    for t in range(n):
        for k, used in enumerate(_memory(model, graph, sizes, run, kept, t)):
            model.add_linear_constraint(used + run[t][k] * (graph.scratch[k] / unit) <= room)
    scale = sum(graph.costs)
    model.minimize(
        mathopt.LinearSum(run[t][i] * (graph.costs[i] / scale) for t in range(n) for i in range(t))
    )
    start = time.perf_counter()
    result = mathopt.solve(
        model,
        solver,
        params=mathopt.SolveParameters(
            time_limit=datetime.timedelta(seconds=time_limit_seconds),
            relative_gap_tolerance=relative_gap,
            absolute_gap_tolerance=relative_gap,
        ),
    )
    reason = result.termination.reason
    return Schedule(
        scale * (1 + result.objective_value()) if result.has_primal_feasible_solution() else None,
        scale * (1 + max(0.0, result.termination.objective_bounds.dual_bound)),
        reason == mathopt.TerminationReason.INFEASIBLE,
        time.perf_counter() - start,
    )


def _memory(
    model: mathopt.Model,
    graph: StepGraph,
    sizes: list[float],
    run: list[list[mathopt.Variable]],
    kept: list[list[mathopt.Variable]],
    t: int,
) -> Iterator[mathopt.Variable]:
    """Memory in use during stage `t` after each value, as the recurrence U of section 4.4.

    A value goes once it was read and is neither kept for the next stage nor read later in this one.
    """
    users = graph.users
    used: mathopt.LinearTypes = mathopt.LinearSum(
        kept[t][value] * sizes[value] for value in range(t)
    )
    for k in range(t + 1):
        now = model.add_variable(lb=0.0)
        model.add_linear_constraint(now == used + run[t][k] * sizes[k])
        yield now
        freed = []
        for value in (*graph.operands[k], k):
            later = [run[t][j] for j in users[value] if k < j <= t]
            stays = [kept[t + 1][value]] if t + 1 < graph.num_values else []
            hazards = mathopt.LinearSum([1 - run[t][k], *later, *stays])
            is_freed = model.add_binary_variable()
            model.add_linear_constraint(1 - is_freed <= hazards)
            model.add_linear_constraint(hazards <= (1 + len(later) + len(stays)) * (1 - is_freed))
            freed.append(is_freed * sizes[value])
        used = now - mathopt.LinearSum(freed)
