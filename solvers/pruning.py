"""Taking out what a bound proves no cheap answer to have: choices, and pairs of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from solvers.dual_ascent import DualAscent
from solvers.problem import FORBIDDEN, Edge, Problem
from solvers.restricted import Restricted, restrict


def prune_choices(problem: Problem, ascent: DualAscent, most: int) -> Restricted | None:
    """Takes out every choice of which `ascent` proves that no answer with it costs `most` or less.

    Every answer that costs `most` or less survives, so that an optimum does where `most` is the
    cost of an answer.

    Args:
        problem: What `ascent` was made from; may have memory terms.
        ascent: With extra costs, `most` counts them too.
        most: The cost of the best answer known.

    Returns:
        None where some node keeps no choice: nothing costs `most` or less.
    """
    keep = [reach <= most for reach in ascent.reach_by_node()]
    if not all(kept.any() for kept in keep):
        return None
    return restrict(problem, keep)


def forbid_pairs(problem: Problem, ascent: DualAscent, most: int) -> Problem:
    """Forbids every pair of which `ascent` proves that no answer with it costs `most` or less.

    Tables stop being shared between edges, so this pays only where columns count: before a model
    with a column for every allowed pair is built.
    """
    return _without_dear_pairs(problem, ascent, most, None)


def prune_choices_and_pairs(problem: Problem, ascent: DualAscent, most: int) -> Restricted | None:
    """Takes out choices and forbids pairs; see `prune_choices`.

    Pays where few choices are left: where `most` is near the bound.
    """
    restricted = prune_choices(problem, ascent, most)
    if restricted is None:
        return None
    return replace(
        restricted, problem=_without_dear_pairs(restricted.problem, ascent, most, restricted)
    )


def _without_dear_pairs(
    problem: Problem, ascent: DualAscent, most: int, restricted: Restricted | None
) -> Problem:
    edges = []
    for e, edge in enumerate(problem.edges):
        if restricted is None:
            reach = ascent.pair_reach(e)
        else:
            surviving = restricted.surviving
            reach = ascent.pair_reach(e, surviving[edge.u], surviving[edge.v])
        is_out = reach > most
        costs = np.where(is_out, FORBIDDEN, edge.costs) if is_out.any() else edge.costs
        edges.append(Edge(edge.u, edge.v, costs))
    return replace(problem, edges=tuple(edges))
