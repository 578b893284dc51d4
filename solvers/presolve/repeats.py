"""Repeated parts, tied: nodes that look alike make one choice, in a much smaller problem.

An answer of the tied problem is an answer of the original at the same cost, so it is something to
start from. It need not be best: first and last layers want other choices than those between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from solvers.presolve.alike import Alike, alike, distinct_rows, ends_of
from solvers.problem import FORBIDDEN, Edge, EdgeMemory, IntArray, NodeMemory, Problem
from solvers.saturating import FORBIDDEN_FROM, add, saturate

ROUNDS = 3
"""How far nodes must look alike: so many edges away."""


@dataclass(frozen=True, slots=True, eq=False)
class Tied:
    """A problem with one node for each class of nodes that look alike, and the way back.

    Args:
        problem: Sums of what the nodes of each class pay and hold.
        class_of: Class of each original node.
    """

    problem: Problem
    class_of: tuple[int, ...]

    def tie(self, choices: Sequence[int]) -> tuple[int, ...]:
        """Gives every class the choice that most of its nodes have."""
        found: list[Counter[int]] = [Counter() for _ in self.problem.node_costs]
        for kind, choice in zip(self.class_of, choices, strict=True):
            found[kind][int(choice)] += 1
        return tuple(max(of_kind, key=of_kind.__getitem__) for of_kind in found)

    def untie(self, choices: Sequence[int]) -> tuple[int, ...]:
        """Gives every node the choice of its class."""
        return tuple(int(choices[kind]) for kind in self.class_of)


def tie_repeats(problem: Problem, *, rounds: int = ROUNDS) -> Tied:
    """Ties nodes that look alike up to `rounds` edges away."""
    return tie(problem, alike(problem, rounds))


def tie(problem: Problem, found: Alike) -> Tied:
    """Gives one choice to the nodes of each class. When memory is held may differ."""
    classes = found.class_of.tolist()
    _, first, copies = np.unique(found.class_of, return_index=True, return_counts=True)
    costs = [
        _times(saturate(problem.node_costs[node]), count)
        for node, count in zip(first.tolist(), copies.tolist(), strict=True)
    ]
    tables: dict[tuple[int, int], IntArray] = {}
    known: dict[tuple[int, int, bool], IntArray] = {}  # equal tables, so often, are one array
    for a, b, one, times in _by_classes(problem, found):
        key = (int(found.tables[one]), times, a > b)
        if key not in known:
            summed = _times(saturate(problem.edges[one].costs), times)
            known[key] = np.ascontiguousarray(summed.T if a > b else summed)
        table = known[key]
        if a == b:
            costs[a] = add(costs[a], np.diagonal(table))
            continue
        pair = (min(a, b), max(a, b))
        tables[pair] = add(tables[pair], table) if pair in tables else table
    position = {pair: e for e, pair in enumerate(tables)}
    node_memory = [
        NodeMemory(classes[term.node], term.start, term.stop, term.usage)
        for term in problem.node_memory
    ]
    edge_memory = []
    turned: dict[int, IntArray] = {}
    for term in problem.edge_memory:
        edge = problem.edges[term.edge]
        a, b = classes[edge.u], classes[edge.v]
        if a == b:
            held = np.diagonal(term.usage).copy()
            node_memory.append(NodeMemory(a, term.start, term.stop, held))
            continue
        usage = term.usage
        if a > b:
            if id(usage) not in turned:
                turned[id(usage)] = np.ascontiguousarray(usage.T)
            usage = turned[id(usage)]
        at = position[min(a, b), max(a, b)]
        edge_memory.append(EdgeMemory(at, term.start, term.stop, usage))
    tied = replace(
        problem,
        node_costs=tuple(costs),
        edges=tuple(Edge(*pair, table) for pair, table in tables.items()),
        node_memory=tuple(node_memory),
        edge_memory=tuple(edge_memory),
    )
    return Tied(tied, tuple(classes))


def _by_classes(problem: Problem, found: Alike) -> Iterator[tuple[int, int, int, int]]:
    """Classes of both ends, one of the edges of a table between them, and how many there are."""
    ends = found.class_of[ends_of(problem)].reshape(-1, 2)
    first, _, count = distinct_rows(np.column_stack((ends, found.tables)))
    for edge, times in zip(first.tolist(), count.tolist(), strict=True):
        yield int(ends[edge, 0]), int(ends[edge, 1]), edge, times


def _times(table: IntArray, count: int) -> IntArray:
    """Returns a saturated table added up so often, saturated."""
    return table if count == 1 else np.where(table >= FORBIDDEN_FROM, FORBIDDEN, table * count)
