"""Repeated parts, tied: nodes that look alike make one choice, in a much smaller problem.

An answer of the tied problem is an answer of the original at the same cost, so it is something to
start from. It need not be best: first and last layers want other choices than those between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

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
    """Ties nodes that look alike up to `rounds` edges away.

    Two nodes look alike when their costs, usages and, over equal tables, their neighbours do. When
    memory is held may differ.
    """
    classes = _classes(problem, rounds)
    count = max(classes, default=-1) + 1
    costs: list[IntArray | None] = [None] * count

    def pay(kind: int, more: IntArray) -> None:
        present = costs[kind]
        costs[kind] = saturate(more) if present is None else add(present, saturate(more))

    for kind, own in zip(classes, problem.node_costs, strict=True):
        pay(kind, own)
    tables: dict[tuple[int, int], IntArray] = {}
    for (a, b), parallel in _by_classes(problem, classes).items():
        for times, of_edge in parallel:
            table = _times(saturate(of_edge), times)
            if a == b:
                pay(a, np.diagonal(table).copy())
                continue
            table = table if a < b else table.T
            pair = (min(a, b), max(a, b))
            tables[pair] = add(tables[pair], table) if pair in tables else table
    position = {pair: e for e, pair in enumerate(tables)}
    node_memory = [
        NodeMemory(classes[term.node], term.start, term.stop, term.usage)
        for term in problem.node_memory
    ]
    edge_memory = []
    for term in problem.edge_memory:
        edge = problem.edges[term.edge]
        a, b = classes[edge.u], classes[edge.v]
        if a == b:
            held = np.diagonal(term.usage).copy()
            node_memory.append(NodeMemory(a, term.start, term.stop, held))
        else:
            usage = term.usage if a < b else np.ascontiguousarray(term.usage.T)
            at = position[min(a, b), max(a, b)]
            edge_memory.append(EdgeMemory(at, term.start, term.stop, usage))
    tied = replace(
        problem,
        node_costs=tuple(own for own in costs if own is not None),
        edges=tuple(Edge(*pair, np.ascontiguousarray(table)) for pair, table in tables.items()),
        node_memory=tuple(node_memory),
        edge_memory=tuple(edge_memory),
    )
    return Tied(tied, tuple(classes))


def _by_classes(
    problem: Problem, classes: Sequence[int]
) -> dict[tuple[int, int], list[tuple[int, IntArray]]]:
    """Tables by the classes of their ends, each with how often it is there."""
    times: dict[tuple[int, int], dict[int, int]] = {}
    tables: dict[int, IntArray] = {}
    for edge in problem.edges:
        tables[id(edge.costs)] = edge.costs
        of_pair = times.setdefault((classes[edge.u], classes[edge.v]), {})
        of_pair[id(edge.costs)] = of_pair.get(id(edge.costs), 0) + 1
    return {
        pair: [(count, tables[table]) for table, count in found.items()]
        for pair, found in times.items()
    }


def _times(table: IntArray, count: int) -> IntArray:
    """Returns a saturated table added up so often, saturated."""
    return table if count == 1 else np.where(table >= FORBIDDEN_FROM, FORBIDDEN, table * count)


def _classes(problem: Problem, rounds: int) -> list[int]:
    """Returns each node's class, numbered by first appearance."""
    content: dict[tuple[object, ...], int] = {}
    by_identity: dict[int, int] = {}

    def number(array: IntArray) -> int:
        if id(array) not in by_identity:
            key = (array.shape, array.tobytes())
            by_identity[id(array)] = content.setdefault(key, len(content))
        return by_identity[id(array)]

    held: list[list[int]] = [[] for _ in problem.node_costs]
    for term in problem.node_memory:
        held[term.node].append(number(term.usage))
    around: list[list[tuple[int, bool, int]]] = [[] for _ in problem.node_costs]
    for edge in problem.edges:
        table = number(edge.costs)
        around[edge.u].append((table, False, edge.v))
        around[edge.v].append((table, True, edge.u))
    kinds = _numbered(
        [
            (number(costs), tuple(sorted(usages)))
            for costs, usages in zip(problem.node_costs, held, strict=True)
        ]
    )
    for _ in range(rounds):
        kinds = _numbered(
            [
                (
                    kind,
                    tuple(sorted((table, turned, kinds[other]) for table, turned, other in near)),
                )
                for kind, near in zip(kinds, around, strict=True)
            ]
        )
    return kinds


def _numbered(descriptions: Sequence[object]) -> list[int]:
    number_by_description: dict[object, int] = {}
    return [number_by_description.setdefault(d, len(number_by_description)) for d in descriptions]
