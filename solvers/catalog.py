"""The backends by name, and which one suits a problem."""

from __future__ import annotations

from dataclasses import dataclass

from solvers.backends.bounds import Bounds
from solvers.backends.brute_force import BruteForce
from solvers.backends.cp_sat import CpSat
from solvers.backends.elimination import Elimination
from solvers.backends.mathopt_highs import MathOptHighs
from solvers.backends.mathopt_scip import MathOptScip
from solvers.backends.protocol import Backend
from solvers.backends.pulp_cbc import PulpCbc
from solvers.backends.pulp_highs import PulpHighs
from solvers.backends.toulbar2 import Toulbar2
from solvers.elimination import order_elimination
from solvers.errors import BackendError
from solvers.problem import Problem

CATALOG: tuple[Backend, ...] = (
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
"""Every backend; listed means tested."""

AUTO = "auto"

QUICK_WORK = 3e8
"""Additions an elimination may take to be preferred to bounds (about a second)."""


@dataclass(frozen=True, slots=True)
class Pick:
    """A backend and why it was picked."""

    backend: Backend
    why: str


def backend_by_name(name: str) -> Backend:
    """Returns a backend of the catalog.

    Raises:
        BackendError: There is none of that name.
    """
    for backend in CATALOG:
        if backend.name == name:
            return backend
    names = ", ".join([AUTO, *(backend.name for backend in CATALOG)])
    raise BackendError(f'no backend is called "{name}"', where="backend", fix=f"one of {names}")


def pick_solver(problem: Problem) -> Pick:
    """Says which backend suits a (reduced) problem, and why."""
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
