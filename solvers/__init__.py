"""Picks one choice per node at the least cost within a memory limit, and proves how good it is."""

from solvers.errors import BackendError, FormatError, ProblemError, SolverError
from solvers.evaluate import Evaluation, evaluate
from solvers.problem import (
    FORBIDDEN,
    Edge,
    EdgeMemory,
    NodeMemory,
    Problem,
    verify_problem,
)
from solvers.result import Progress, Result, Status
from solvers.solve import solve

__all__ = [
    "FORBIDDEN",
    "BackendError",
    "Edge",
    "EdgeMemory",
    "Evaluation",
    "FormatError",
    "NodeMemory",
    "Problem",
    "ProblemError",
    "Progress",
    "Result",
    "SolverError",
    "Status",
    "evaluate",
    "solve",
    "verify_problem",
]
