"""Nodes whose choices follow from each other one to one, merged all at once.

In a traced program most nodes are such: what reads a value takes the value's choice. One by one, as
`merge_forced` would, they take most of the time presolve has.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solvers.presolve.graph import ChoiceGraph, Merged, Term, pair_of, taken
from solvers.problem import IntArray
from solvers.saturating import is_allowed


@dataclass(frozen=True, slots=True, eq=False)
class _Follows:
    """What a node takes with each choice of its leader; itself where it leads.

    Args:
        leader: The node followed.
        choices: int64[choices of the leader], interned.
        content: Its bytes, for keys.
    """

    leader: int
    choices: IntArray
    content: bytes


def merge_equals(graph: ChoiceGraph) -> None:
    """Merges every set of nodes joined one to one into the one with the most neighbours.

    Tables do not grow. Where ways round a cycle disagree, the leader's choices become forbidden.

    Args:
        graph: As `ChoiceGraph.from_problem` returns it: no choice is gone yet.
    """
    follows = _follow(graph, _joined_one_to_one(graph))
    for node, followed in enumerate(follows):
        if followed is not None and followed.leader != node:
            _hand_over(graph, node, followed)
    tables, pair_terms = graph.tables, graph.pair_terms
    graph.tables, graph.pair_terms = {}, {}
    graph.neighbours = [set() for _ in graph.node_costs]
    for (u, v), table in tables.items():
        _rename_pair(graph, u, v, table, pair_terms.get((u, v), []), follows)
    for node in {followed.leader for followed in follows if followed is not None}:
        graph.sum_many_terms(node)


def _joined_one_to_one(graph: ChoiceGraph) -> dict[int, list[tuple[int, IntArray]]]:
    """Returns (other node, its choice for each of the own) of each node's pairs that are so."""
    joined: dict[int, list[tuple[int, IntArray]]] = {}
    for (u, v), table in graph.tables.items():
        partner = graph.cache.compute(_one_to_one, table)
        if partner.size:
            back = graph.cache.compute(np.argsort, partner)
            joined.setdefault(u, []).append((v, partner))
            joined.setdefault(v, []).append((u, back))
    return joined


def _one_to_one(table: IntArray) -> IntArray:
    """Returns int64[rows]: the one column each row allows, all different; empty if not so."""
    allowed = is_allowed(table)
    if table.shape[0] != table.shape[1] or (allowed.sum(axis=1) != 1).any():
        return np.empty(0, dtype=np.int64)
    partner = allowed.argmax(axis=1).astype(np.int64)
    is_onto = bool(allowed.any(axis=0).all())
    return partner if is_onto else np.empty(0, dtype=np.int64)


def _follow(
    graph: ChoiceGraph, joined: dict[int, list[tuple[int, IntArray]]]
) -> list[_Follows | None]:
    """Returns what each node follows, None where it is joined to none."""
    follows: list[_Follows | None] = [None for _ in graph.node_costs]
    for leader in sorted(joined, key=lambda node: (-len(graph.neighbours[node]), node)):
        if follows[leader] is not None:
            continue
        own = graph.cache.intern(np.arange(len(graph.costs_of(leader)), dtype=np.int64))
        follows[leader] = _Follows(leader, own, own.tobytes())
        reached = [leader]
        for node in reached:
            before = follows[node]
            assert before is not None
            for other, partner in joined[node]:
                if follows[other] is None:
                    follows[other] = _after(graph, before, partner)
                    reached.append(other)
    return follows


def _after(graph: ChoiceGraph, before: _Follows, partner: IntArray) -> _Follows:
    """Returns what the node behind another one follows."""
    choices = graph.cache.compute(taken, partner, extra=(before.content,))
    if choices is before.choices:
        return before
    return _Follows(before.leader, choices, choices.tobytes())


def _along(table: IntArray, rows: bytes, columns: bytes) -> IntArray:
    """Returns int64[choices of the leader of both ends]."""
    return table[np.frombuffer(rows, dtype=np.int64), np.frombuffer(columns, dtype=np.int64)]


def _renamed(table: IntArray, rows: bytes, columns: bytes, is_turned: bool) -> IntArray:
    """Returns a table in the choices of the leaders, turned where their order is another."""
    if rows:
        table = table[np.frombuffer(rows, dtype=np.int64)]
    if columns:
        table = table[:, np.frombuffer(columns, dtype=np.int64)]
    return table.T if is_turned else table


def _hand_over(graph: ChoiceGraph, node: int, followed: _Follows) -> None:
    """Lets the leader pay and hold what a follower does."""
    compute, content = graph.cache.compute, (followed.content,)
    leader = followed.leader
    graph.add_node_costs(leader, compute(taken, graph.costs_of(node), extra=content))
    graph.node_terms[leader] += [
        Term(term.start, term.stop, compute(taken, term.usage, extra=content))
        for term in graph.node_terms[node]
    ]
    graph.undo.append(Merged(node, leader, followed.choices))
    graph.forget(node)


def _rename_pair(
    graph: ChoiceGraph,
    u: int,
    v: int,
    table: IntArray,
    terms: list[Term],
    follows: list[_Follows | None],
) -> None:
    """Puts a pair between its ends' leaders, or into the costs of the one leader of both."""
    compute = graph.cache.compute
    first, second = follows[u], follows[v]
    a = u if first is None else first.leader
    b = v if second is None else second.leader
    if first is not None and second is not None and a == b:
        extra = (first.content, second.content)
        graph.add_node_costs(a, compute(_along, table, extra=extra))
        graph.node_terms[a] += [
            Term(t.start, t.stop, compute(_along, t.usage, extra=extra)) for t in terms
        ]
        return
    key = (
        b"" if first is None or u == a else first.content,
        b"" if second is None or v == b else second.content,
        a > b,
    )
    is_same = key == (b"", b"", False)
    pair = pair_of(a, b)
    graph.add_table(*pair, table if is_same else compute(_renamed, table, extra=key))
    if terms:
        graph.pair_terms.setdefault(pair, []).extend(
            Term(t.start, t.stop, compute(_renamed, t.usage, extra=key)) for t in terms
        )
