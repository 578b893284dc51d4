"""Parts of a problem that have nothing to do with each other: no edge, no memory row in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from solvers.memory_rows import memory_terms
from solvers.problem import Edge, EdgeMemory, NodeMemory, Problem


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Some nodes of a problem as a problem of its own, with the same limit.

    Args:
        problem: The part; times stay as they are.
        nodes: Node of the whole for each node of the part.
    """

    problem: Problem
    nodes: tuple[int, ...]

    def reduce(self, choices: Sequence[int]) -> tuple[int, ...]:
        """Turns choices of the whole into choices of the part."""
        return tuple(int(choices[node]) for node in self.nodes)


def join_parts(parts: Sequence[Part], choices: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Turns choices of each part into choices of the whole."""
    whole = [0] * sum(len(part.nodes) for part in parts)
    for part, chosen in zip(parts, choices, strict=True):
        for node, choice in zip(part.nodes, chosen, strict=True):
            whole[node] = int(choice)
    return tuple(whole)


def split_into_parts(problem: Problem) -> tuple[Part, ...]:
    """Splits a problem whose times are row numbers; lone nodes stay with the first part.

    The optimum of the whole is made of optima of the parts.
    """
    root = list(range(problem.num_nodes))

    def find(node: int) -> int:
        while root[node] != node:
            root[node] = root[root[node]]
            node = root[node]
        return node

    def join(first: int, second: int) -> None:
        a, b = find(first), find(second)
        root[max(a, b)] = min(a, b)

    for edge in problem.edges:
        join(edge.u, edge.v)
    _join_over_rows(problem, join)
    members: dict[int, list[int]] = {}
    for node in range(problem.num_nodes):
        members.setdefault(find(node), []).append(node)
    large = [nodes for nodes in members.values() if len(nodes) > 1]
    if len(large) <= 1:
        return (Part(problem, tuple(range(problem.num_nodes))),)
    alone = [nodes[0] for nodes in members.values() if len(nodes) == 1]
    large[0] = sorted(large[0] + alone)
    return tuple(_part(problem, nodes) for nodes in large)


def _join_over_rows(problem: Problem, join: Callable[[int, int], None]) -> None:
    terms = sorted(memory_terms(problem), key=lambda term: term.start)
    last: int | None = None
    until = 0
    for term in terms:
        if term.start >= term.stop:
            continue
        owner = term.node if isinstance(term, NodeMemory) else problem.edges[term.edge].u
        if last is not None and term.start < until:
            join(last, owner)
        last, until = owner, max(until, term.stop)


def _part(problem: Problem, nodes: list[int]) -> Part:
    index = {node: i for i, node in enumerate(nodes)}
    here = [e for e, edge in enumerate(problem.edges) if edge.u in index]
    edge_index = {e: i for i, e in enumerate(here)}
    edges = [problem.edges[e] for e in here]
    part = replace(
        problem,
        node_costs=tuple(problem.node_costs[node] for node in nodes),
        edges=tuple(Edge(index[edge.u], index[edge.v], edge.costs) for edge in edges),
        node_memory=tuple(
            NodeMemory(index[term.node], term.start, term.stop, term.usage)
            for term in problem.node_memory
            if term.node in index
        ),
        edge_memory=tuple(
            EdgeMemory(edge_index[term.edge], term.start, term.stop, term.usage)
            for term in problem.edge_memory
            if term.edge in edge_index
        ),
    )
    if not part.node_memory and not part.edge_memory:
        part = replace(part, memory_limit=None)
    return Part(part, tuple(nodes))
