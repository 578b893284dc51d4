"""Picks one choice per node at the least cost within a memory limit, and proves how good it is."""

from solvers.catalog import CATALOG, Pick, pick_solver
from solvers.errors import EngineError, FormatError, ProblemError, SolverError
from solvers.evaluate import Evaluation, evaluate
from solvers.k_best import solve_k_best
from solvers.memory_rows import least_use
from solvers.priced_memory import with_priced_memory
from solvers.problem import FORBIDDEN, Edge, EdgeMemory, MemoryLimit, NodeMemory, Problem
from solvers.restricted import Restricted, restrict
from solvers.result import Progress, Result, Status, proven_status
from solvers.settled import Settled, settle
from solvers.shortest_paths import shortest_paths
from solvers.smallest_peak import NO_ROOM
from solvers.solve import solve
from solvers.verify_problem import verify_problem

__all__ = [
    "CATALOG",
    "FORBIDDEN",
    "NO_ROOM",
    "Edge",
    "EdgeMemory",
    "EngineError",
    "Evaluation",
    "FormatError",
    "MemoryLimit",
    "NodeMemory",
    "Pick",
    "Problem",
    "ProblemError",
    "Progress",
    "Restricted",
    "Result",
    "Settled",
    "SolverError",
    "Status",
    "evaluate",
    "least_use",
    "pick_solver",
    "proven_status",
    "restrict",
    "settle",
    "shortest_paths",
    "solve",
    "solve_k_best",
    "verify_problem",
    "with_priced_memory",
]
