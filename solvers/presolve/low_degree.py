"""Takes out nodes of degree at most two that no memory row touches, exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from solvers.elimination import Elimination, eliminate, order_elimination
from solvers.problem import Edge, EdgeMemory, IntArray, NodeMemory, Problem
from solvers.saturating import FORBIDDEN_FROM, add

LARGEST_PAIR_TABLE = 40_000
"""A node stays when the table its elimination leaves would have more entries."""


@dataclass(frozen=True, slots=True, eq=False)
class LowDegree:
    """What is left, and the way back.

    Args:
        problem: The kept nodes; every table is still pairwise.
        constant: What the original costs beyond it.
        nodes: Original node of each kept node.
        elimination: How the others follow.
        is_infeasible: Some eliminated node has no allowed choice.
    """

    problem: Problem
    constant: int
    nodes: tuple[int, ...]
    elimination: Elimination
    is_infeasible: bool

    def restore(self, choices: Sequence[int]) -> tuple[int, ...]:
        """Fills in the eliminated nodes' best choices."""
        num_nodes = len(self.nodes) + len(self.elimination.order.steps)
        full = np.zeros(num_nodes, dtype=np.int64)
        full[list(self.nodes)] = choices
        return tuple(self.elimination.complete(full).tolist())

    def reduce(self, choices: Sequence[int]) -> tuple[int, ...]:
        """Leaves the eliminated nodes' choices out."""
        return tuple(int(choices[node]) for node in self.nodes)


def eliminate_low_degree(problem: Problem) -> LowDegree:
    """Eliminates what can go without a table over three nodes.

    Args:
        problem: With at most one edge a pair, ends ascending (as `presolve` returns it).
    """
    touched = {term.node for term in problem.node_memory}
    for pair_term in problem.edge_memory:
        edge = problem.edges[pair_term.edge]
        touched.update((edge.u, edge.v))
    sizes = [len(costs) for costs in problem.node_costs]
    tables = {(edge.u, edge.v): edge.costs for edge in problem.edges}
    order = order_elimination(
        sizes, tables, keep=frozenset(touched), largest_table=LARGEST_PAIR_TABLE, most_neighbours=2
    )
    elimination = eliminate(order, problem.node_costs, tables)
    index = {node: i for i, node in enumerate(order.kept)}
    costs: list[IntArray] = [np.zeros(sizes[node], dtype=np.int64) for node in order.kept]
    pair_costs: dict[tuple[int, int], IntArray] = {}
    for factor in elimination.factors:
        scope = tuple(index[node] for node in factor.scope)
        if len(scope) == 1:
            costs[scope[0]] = add(costs[scope[0]], factor.table)
        else:
            pair = (scope[0], scope[1])
            present = pair_costs.get(pair)
            pair_costs[pair] = factor.table if present is None else add(present, factor.table)
    pairs = sorted(pair_costs)
    position = {pair: e for e, pair in enumerate(pairs)}
    smaller = Problem(
        node_costs=tuple(costs),
        edges=tuple(Edge(*pair, pair_costs[pair]) for pair in pairs),
        node_memory=tuple(
            NodeMemory(index[term.node], term.start, term.stop, term.usage)
            for term in problem.node_memory
        ),
        edge_memory=tuple(
            EdgeMemory(
                position[index[problem.edges[term.edge].u], index[problem.edges[term.edge].v]],
                term.start,
                term.stop,
                term.usage,
            )
            for term in problem.edge_memory
        ),
        memory_limit=problem.memory_limit,
        name=problem.name,
    )
    return LowDegree(
        problem=smaller,
        constant=elimination.constant,
        nodes=order.kept,
        elimination=elimination,
        is_infeasible=elimination.constant >= FORBIDDEN_FROM,
    )
