"""A smaller problem with the same optimum, and the way back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from solvers.memory_rows import compress_memory
from solvers.presolve.equals import merge_equals
from solvers.presolve.graph import ChoiceGraph, Fixed, Merged, TableCache, Term, holds_any
from solvers.presolve.rules import ALL_RULES, LONG_RULES, Rule, merge_forced
from solvers.problem import Edge, EdgeMemory, IntArray, NodeMemory, Problem

_NODES_BETWEEN_LOOKS = 64


def never() -> bool:
    """Time that does not run out."""
    return False


@dataclass(frozen=True, slots=True, eq=False)
class Presolved:
    """What is left of a problem.

    Args:
        problem: The smaller problem. Its memory times are row numbers, see `row_times`.
        constant: What the original costs beyond the smaller one, for restored choices.
        row_times: A time of the original problem for every time of the smaller one.
        is_infeasible: Forbidden costs leave some node of the original without a choice.
        num_original_nodes: Of the original.
        nodes: Original node of each node of the smaller problem; -1 for memory that is always
            held, which becomes a node with one choice.
        surviving: Original choices of each node of the smaller problem.
        undo: How the other nodes follow.
    """

    problem: Problem
    constant: int
    row_times: tuple[int, ...]
    is_infeasible: bool
    num_original_nodes: int
    nodes: tuple[int, ...]
    surviving: tuple[IntArray, ...]
    undo: tuple[Fixed | Merged, ...]

    def restore(self, choices: Sequence[int]) -> tuple[int, ...]:
        """Turns choices of the smaller problem into choices of the original."""
        original = np.zeros(self.num_original_nodes, dtype=np.int64)
        for node, surviving, choice in zip(self.nodes, self.surviving, choices, strict=True):
            if node >= 0:
                original[node] = surviving[choice]
        for step in reversed(self.undo):
            if isinstance(step, Fixed):
                original[step.node] = step.choice
            else:
                original[step.node] = step.choice_by_leader_choice[original[step.leader]]
        return tuple(original.tolist())

    def reduce(self, choices: Sequence[int]) -> tuple[int, ...]:
        """Turns original choices into the smaller problem's; a choice that is gone becomes 0."""
        reduced = []
        for node, surviving in zip(self.nodes, self.surviving, strict=True):
            is_same = surviving == choices[node]
            reduced.append(int(is_same.argmax()) if node >= 0 else 0)
        return tuple(reduced)


def presolve(
    problem: Problem,
    *,
    use_memory: bool = True,
    rules: Sequence[Rule] = ALL_RULES,
    is_over: Callable[[], bool] = never,
) -> Presolved:
    """Applies the rules to a fixed point.

    Args:
        problem: A problem `verify_problem` finds no fault with.
        use_memory: False leaves the memory limit out of the smaller problem (a relaxation, in which
            more can be reduced).
        rules: Which rules, in which order at each node.
        is_over: Asked now and then; once true, what is reduced so far is returned.
    """
    if not use_memory or problem.memory_limit is None:
        problem = replace(problem, node_memory=(), edge_memory=(), memory_limit=None)
    compressed, row_times = compress_memory(problem)
    graph = ChoiceGraph.from_problem(compressed)
    if merge_forced in rules:
        merge_equals(graph)
    _apply(graph, rules, is_over)
    graph.shift_to_constant()
    return _presolved(graph, compressed, row_times)


def _apply(graph: ChoiceGraph, rules: Sequence[Rule], is_over: Callable[[], bool]) -> None:
    """Applies rules until none finds anything; those that take long once the others are done."""
    quick = [rule for rule in rules if rule not in LONG_RULES]
    long = [rule for rule in rules if rule in LONG_RULES]
    seen: set[int] = set()
    while graph.dirty and not graph.is_infeasible and not is_over():
        dirty, graph.dirty = sorted(graph.dirty), set()
        _visit(graph, dirty, quick, is_over)
        seen.update(dirty)
        if not graph.dirty:
            _visit(graph, sorted(seen), long, is_over)
            seen.clear()


def _visit(
    graph: ChoiceGraph, nodes: list[int], rules: list[Rule], is_over: Callable[[], bool]
) -> None:
    for count, node in enumerate(nodes):
        if count % _NODES_BETWEEN_LOOKS == 0 and is_over():
            return
        for rule in rules:
            if graph.node_costs[node] is None or graph.is_infeasible:
                break
            rule(graph, node)


def _presolved(graph: ChoiceGraph, source: Problem, row_times: tuple[int, ...]) -> Presolved:
    nodes = list(graph.nodes())
    index = {node: i for i, node in enumerate(nodes)}
    costs = [graph.costs_of(node) for node in nodes]
    surviving = [graph.surviving[node] for node in nodes]
    node_memory = [
        NodeMemory(index[node], term.start, term.stop, term.usage)
        for node in nodes
        for term in _joined(graph.node_terms[node], graph.cache)
    ]
    pairs = sorted(graph.tables)
    edges = tuple(Edge(index[u], index[v], graph.tables[u, v]) for u, v in pairs)
    edge_memory = tuple(
        EdgeMemory(e, term.start, term.stop, term.usage)
        for e, pair in enumerate(pairs)
        for term in _joined(graph.pair_terms.get(pair, []), graph.cache)
    )
    if graph.held_terms:
        nodes.append(-1)
        costs.append(np.zeros(1, dtype=np.int64))
        surviving.append(np.zeros(1, dtype=np.int64))
        node_memory += [
            NodeMemory(len(nodes) - 1, start, stop, np.array([held], dtype=np.int64))
            for start, stop, held in _held_profile(graph.held_terms)
        ]
    smaller = Problem(
        node_costs=tuple(costs),
        edges=edges,
        node_memory=tuple(node_memory),
        edge_memory=edge_memory,
        memory_limit=source.memory_limit,
        name=source.name,
    )
    again, rows = compress_memory(smaller)
    return Presolved(
        problem=again,
        constant=graph.constant,
        row_times=tuple(row_times[row] for row in rows),
        is_infeasible=graph.is_infeasible,
        num_original_nodes=source.num_nodes,
        nodes=tuple(nodes),
        surviving=tuple(surviving),
        undo=tuple(graph.undo),
    )


def _joined(terms: list[Term], cache: TableCache) -> list[Term]:
    """Sums terms over the same interval, drops those that hold nothing, interns the rest."""
    by_interval: dict[tuple[int, int], IntArray] = {}
    for term in terms:
        key = (term.start, term.stop)
        present = by_interval.get(key)
        by_interval[key] = (
            term.usage if present is None else cache.compute(np.add, present, term.usage)
        )
    return [
        Term(*key, usage)
        for key, usage in by_interval.items()
        if cache.compute(holds_any, usage).size
    ]


def _held_profile(terms: list[Term]) -> list[tuple[int, int, int]]:
    """Returns (start, stop, bytes) of the stretches over which the sum stays the same."""
    change_at: dict[int, int] = {}
    for term in terms:
        held = int(term.usage[0])
        change_at[term.start] = change_at.get(term.start, 0) + held
        change_at[term.stop] = change_at.get(term.stop, 0) - held
    moments = sorted(change_at)
    profile = []
    held = 0
    for start, stop in pairwise(moments):
        held += change_at[start]
        if held:
            profile.append((start, stop, held))
    return profile
