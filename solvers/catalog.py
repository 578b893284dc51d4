"""The engines by name, and which one suits a problem."""

from __future__ import annotations

from dataclasses import dataclass

from solvers.elimination import order_elimination
from solvers.engines.bounds import Bounds
from solvers.engines.brute_force import BruteForce
from solvers.engines.cp_sat import CpSat
from solvers.engines.elimination import Elimination
from solvers.engines.mathopt_highs import MathOptHighs
from solvers.engines.mathopt_scip import MathOptScip
from solvers.engines.protocol import Engine
from solvers.engines.pulp_cbc import PulpCbc
from solvers.engines.pulp_highs import PulpHighs
from solvers.engines.toulbar2 import Toulbar2
from solvers.errors import EngineError
from solvers.problem import Problem

CATALOG: tuple[Engine, ...] = (
    MathOptHighs(),
    MathOptScip(),
    CpSat(),
    PulpCbc(),
    PulpHighs(),
    Toulbar2(),
    Bounds(),
    Bounds(has_finish=False),
    Elimination(),
    BruteForce(),
)
"""Every engine; listed means tested."""

AUTO = "auto"

QUICK_WORK = 3e8
"""Additions an elimination may take to be preferred to bounds (about a second)."""


@dataclass(frozen=True, slots=True)
class Pick:
    """An engine and why it was picked."""

    engine: Engine
    why: str


def engine_by_name(name: str) -> Engine:
    """Returns an engine of the catalog.

    Raises:
        EngineError: There is none of that name.
    """
    for engine in CATALOG:
        if engine.name == name:
            return engine
    names = ", ".join([AUTO, *(engine.name for engine in CATALOG)])
    raise EngineError(f'no engine is called "{name}"', where="engine", fix=f"one of {names}")


def pick_solver(problem: Problem) -> Pick:
    """Says which engine suits a (reduced) problem, and why."""
    order = order_elimination(
        [len(costs) for costs in problem.node_costs],
        [(edge.u, edge.v) for edge in problem.edges],
        largest_work=QUICK_WORK,
    )
    if problem.memory_limit is None and not order.kept:
        return Pick(
            Elimination(),
            f"no memory row can bind and {order.num_additions} additions eliminate all "
            f"{problem.num_nodes} nodes",
        )
    if problem.memory_limit is None:
        return Pick(
            Bounds(),
            f"no memory row can bind, but {len(order.kept)} of {problem.num_nodes} nodes are "
            "joined too widely to be eliminated at once",
        )
    return Pick(
        Bounds(),
        f"memory rows can bind; {problem.num_nodes} nodes are bounded and pruned for an exact "
        "finish, beside message passing and moves",
    )
