"""A problem without the choices that cannot fit, reduced anew where that pays, and the way back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from solvers.memory_rows import num_rows_of
from solvers.presolve import Reduced, fitting_choices, reduce_fully
from solvers.problem import FORBIDDEN, Edge, Problem
from solvers.restricted import Restricted, restrict
from solvers.scalable.memory_pruning import conflicts
from solvers.way_back import reduce_through, restore_through

WORTH_REDUCING = 0.95
"""The problem is reduced anew where at most this share of its columns is left."""


@dataclass(frozen=True, slots=True, eq=False)
class Tightened:
    """A problem of which nothing that fits was lost.

    Args:
        problem: Without choices that cannot fit.
        constant: What the original costs beyond it.
        steps: The way there, first step first; none where too little went.
        is_infeasible: Proven that nothing fits, or that forbidden costs leave no answer.
    """

    problem: Problem
    constant: int = 0
    steps: tuple[Restricted | Reduced, ...] = ()
    is_infeasible: bool = False

    def restore(self, choices: Sequence[int]) -> tuple[int, ...]:
        """Turns choices of this problem into choices of the original."""
        return restore_through(self.steps, choices)

    def reduce(self, choices: Sequence[int]) -> tuple[int, ...]:
        """Turns choices of the original into near ones of this problem."""
        return reduce_through(self.steps, choices)


def tighten(problem: Problem, is_over: Callable[[], bool]) -> Tightened:
    """Takes out what cannot fit; keeps the problem as it is where that is little.

    Args:
        problem: Times are row numbers; at most one edge a pair.
        is_over: Stops reductions early.
    """
    keep = fitting_choices(problem, num_rows_of(problem))
    if keep is None:
        return Tightened(problem, is_infeasible=True)
    if is_over():
        return Tightened(problem)
    has_lost = not all(kept.all() for kept in keep)
    restricted = restrict(problem, keep) if has_lost else None
    left = problem if restricted is None else restricted.problem
    clashes = conflicts(left, num_rows_of(problem))
    share = left.num_columns / max(1, problem.num_columns)
    num_clashing = sum(int(clash.sum()) for clash in clashes.values())
    if share > WORTH_REDUCING and num_clashing < (1 - WORTH_REDUCING) * problem.num_columns:
        return Tightened(problem)
    if restricted is None:
        restricted = restrict(problem, keep)
    clashing = replace(restricted, problem=_with_clashes(left, clashes))
    reduced = reduce_fully(clashing.problem, is_over=is_over)
    return Tightened(reduced.problem, reduced.constant, (clashing, reduced), reduced.is_infeasible)


def _with_clashes(
    problem: Problem, clashes: Mapping[tuple[int, int], npt.NDArray[np.bool_]]
) -> Problem:
    """Forbids pairs of choices, with new edges where there are none."""
    left = dict(clashes)
    edges = []
    for edge in problem.edges:
        key = (edge.u, edge.v) if edge.u < edge.v else (edge.v, edge.u)
        clash = left.pop(key, None)
        if clash is not None:
            is_out = clash if edge.u < edge.v else clash.T
            edge = Edge(edge.u, edge.v, np.where(is_out, FORBIDDEN, edge.costs))
        edges.append(edge)
    edges += [
        Edge(u, v, np.where(clash, FORBIDDEN, 0).astype(np.int64)) for (u, v), clash in left.items()
    ]
    return replace(problem, edges=tuple(edges))
