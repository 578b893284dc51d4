"""Repeated parts, tied: nodes that look alike make one choice, in a much smaller problem.

An answer of the tied problem is an answer of the original at the same cost, so it is something to
start from. It need not be best: first and last layers want other choices than those between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from solvers.problem import Edge, EdgeMemory, IntArray, NodeMemory, Problem
from solvers.saturating import add, saturate

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
    for edge in problem.edges:
        a, b = classes[edge.u], classes[edge.v]
        if a == b:
            pay(a, np.diagonal(edge.costs).copy())
            continue
        table = saturate(edge.costs if a < b else edge.costs.T)
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
