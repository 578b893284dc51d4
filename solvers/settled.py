"""A problem of the nodes that still have a choice, which pays for the others; and the way back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from solvers.flat import Flat
from solvers.problem import FORBIDDEN, Edge, IntArray, Problem
from solvers.saturating import as_valid

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Settled:
    """A smaller problem, and the way back.

    Args:
        problem: The nodes that have several choices left, and a last one of one choice that costs
            what all settled nodes and edges do. Without memory.
        kept: Original choices left, per original node.
    """

    problem: Problem
    kept: tuple[IntArray, ...]

    def restore(self, choices: Sequence[int]) -> tuple[int, ...]:
        """Turns choices of the smaller problem into choices of the original."""
        picked = iter(choices)
        return tuple(int(own[next(picked) if len(own) > 1 else 0]) for own in self.kept)


def settle(problem: Problem, keep: Sequence[BoolArray]) -> Settled:
    """Takes choices and memory out of a problem, then the nodes that have one choice left.

    Args:
        problem: Any problem.
        keep: bool[num_choices] per node, somewhere true at every node.
    """
    distinct = {id(own): own for own in keep}  # copies of a part share them
    read = {key: (np.flatnonzero(own), own.tobytes()) for key, own in distinct.items()}
    kept = tuple(read[id(own)][0] for own in keep)
    masks = [read[id(own)][1] for own in keep]
    place = {node: at for at, node in enumerate(n for n, own in enumerate(kept) if len(own) > 1)}
    flat, only = Flat.of(problem), np.array([own[0] for own in kept], dtype=np.int64)
    costs = [np.minimum(problem.node_costs[node][kept[node]], FORBIDDEN) for node in place]
    is_settled = np.ones(len(kept), dtype=np.bool_)
    is_settled[list(place)] = False
    both = is_settled[flat.u] & is_settled[flat.v]
    paid = flat.costs.at(only)[is_settled], flat.tables.at(flat.pairs(only))[both]
    settled = sum(np.concatenate(paid).tolist())  # would pass 64 bits
    tables: dict[tuple[int, bytes, bytes], IntArray] = {}
    edges = []
    for edge in map(problem.edges.__getitem__, np.flatnonzero(~both).tolist()):
        u, v = edge.u, edge.v
        key = (id(edge.costs), masks[u], masks[v])
        if key not in tables:
            tables[key] = edge.costs.take(kept[u], 0).take(kept[v], 1)
        if u in place and v in place:
            edges.append(Edge(place[u], place[v], tables[key]))
            continue
        own = costs[place[u if u in place else v]]
        # Saturates: many forbidden pairs at one node would pass 64 bits.
        np.minimum(own + np.minimum(tables[key].ravel(), FORBIDDEN), FORBIDDEN, out=own)
    constant = np.array([min(settled, FORBIDDEN)], dtype=np.int64)
    node_costs = tuple(as_valid(own) for own in (*costs, constant))
    return Settled(Problem(node_costs, tuple(edges), name=problem.name), kept)
