"""Exact reductions of a problem, each with the way back."""

from solvers.presolve.chain import Reduced, reduce_fully
from solvers.presolve.low_degree import LowDegree, eliminate_low_degree
from solvers.presolve.presolve import Presolved, presolve
from solvers.presolve.rules import ALL_RULES, STRUCTURAL_RULES

__all__ = [
    "ALL_RULES",
    "STRUCTURAL_RULES",
    "LowDegree",
    "Presolved",
    "Reduced",
    "eliminate_low_degree",
    "presolve",
    "reduce_fully",
]
