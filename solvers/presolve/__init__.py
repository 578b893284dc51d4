"""Exact reductions of a problem, each with the way back."""

from solvers.presolve.chain import Reduced, reduce_fully
from solvers.presolve.components import Part, join_parts, split_into_parts
from solvers.presolve.fitting import drop_unfitting, fitting_choices
from solvers.presolve.low_degree import LowDegree, eliminate_low_degree
from solvers.presolve.presolve import Presolved, never, presolve
from solvers.presolve.repeats import Tied, tie, tie_repeats
from solvers.presolve.rules import ALL_RULES, STRUCTURAL_RULES

__all__ = [
    "ALL_RULES",
    "STRUCTURAL_RULES",
    "LowDegree",
    "Part",
    "Presolved",
    "Reduced",
    "Tied",
    "drop_unfitting",
    "eliminate_low_degree",
    "fitting_choices",
    "join_parts",
    "never",
    "presolve",
    "reduce_fully",
    "split_into_parts",
    "tie",
    "tie_repeats",
]
