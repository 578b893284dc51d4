"""The graph the presolve rules shrink, and the record that leads back to the original."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from solvers.interned import Interned
from solvers.problem import FORBIDDEN, EdgeMemory, IntArray, NodeMemory, Problem
from solvers.saturating import FORBIDDEN_FROM, add, saturate

Pair = tuple[int, int]

_MANY_TERMS = 16


def pair_of(u: int, v: int) -> Pair:
    """The key of a pair: the lower node first."""
    return (u, v) if u < v else (v, u)


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """Bytes held while ``start <= t < stop``; the owner says what indexes `usage`.

    In a `ChoiceGraph` usages are interned, as tables are.
    """

    start: int
    stop: int
    usage: IntArray


def summed_terms(terms: list[Term]) -> list[Term]:
    """Returns terms that never overlap and hold together what the given ones hold."""
    starts = np.array([term.start for term in terms], dtype=np.int64)
    stops = np.array([term.stop for term in terms], dtype=np.int64)
    usages = np.stack([term.usage for term in terms])
    moments = np.unique(np.concatenate((starts, stops)))
    change = np.zeros((len(moments), *terms[0].usage.shape), dtype=np.int64)
    np.add.at(change, np.searchsorted(moments, starts), usages)
    np.subtract.at(change, np.searchsorted(moments, stops), usages)
    has_change = change.reshape(len(moments), -1).any(axis=1)
    times = moments[has_change].tolist()
    held = np.cumsum(change[has_change], axis=0)
    return [
        Term(start, stop, usage)
        for start, stop, usage in zip(times, times[1:], held, strict=False)
        if usage.any()
    ]


@dataclass(frozen=True, slots=True, eq=False)
class Fixed:
    """Undo: `node` had one choice left."""

    node: int
    choice: int


@dataclass(frozen=True, slots=True, eq=False)
class Merged:
    """Undo: `node` follows `leader`; int64[original choices of leader] gives its choice."""

    node: int
    leader: int
    choice_by_leader_choice: IntArray


class TableCache:
    """Results of table operations by the identity of their inputs; equal tables become one.

    Repeated layers share their tables, so that a rule works once for all of them.
    """

    def __init__(self) -> None:
        self._interned = Interned()
        self._results: dict[tuple[object, ...], npt.NDArray[Any]] = {}

    def intern(self, table: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Returns the one array kept for this content."""
        return self._interned.of(table)

    def compute(
        self,
        operation: Callable[..., npt.NDArray[Any]],
        *tables: npt.NDArray[Any],
        extra: tuple[int | bytes, ...] = (),
    ) -> npt.NDArray[Any]:
        """Returns ``operation(*tables, *extra)``, computed once for the same interned `tables`."""
        key = (operation, *map(id, tables), *extra)
        found = self._results.get(key)
        if found is None:
            found = self._results[key] = self.intern(operation(*tables, *extra))
        return found

    def recall(
        self, key: tuple[object, ...], make: Callable[[], npt.NDArray[Any]]
    ) -> npt.NDArray[Any]:
        """Returns ``make()``, called once for each key; the key says all it depends on.

        Args:
            key: With the identities of interned tables only.
            make: Called where the key is new.
        """
        found = self._results.get(key)
        if found is None:
            found = self._results[key] = make()
        return found


def _kept(table: IntArray, axis: int, mask: bytes) -> IntArray:
    return np.compress(np.frombuffer(mask, dtype=bool), table, axis=axis)


def taken(usage: IntArray, partner: bytes) -> IntArray:
    """Returns a usage or costs in the order of the choices taken (the bytes of int64[choices])."""
    return usage[np.frombuffer(partner, dtype=np.int64)]


def _merged_costs(
    table: IntArray, costs: IntArray, leader_costs: IntArray, is_turned: bool, partner: bytes
) -> IntArray:
    """Returns what a leader pays once a node follows it; the leader is in the table's rows."""
    taken = np.frombuffer(partner, dtype=np.int64)
    between = (table.T if is_turned else table)[np.arange(len(taken)), taken]
    return add(leader_costs, add(between, costs[taken]))


def _with_only_row(costs: IntArray, table: IntArray, is_turned: bool) -> IntArray:
    """Returns what a node pays once its neighbour, in the table's rows, has one choice."""
    return add(costs, table[:, 0] if is_turned else table[0])


def holds_any(usage: IntArray) -> IntArray:
    """Returns an array that is empty where a usage is 0 throughout."""
    return np.zeros(int(usage.any()), dtype=np.int64)


def _followed(table: IntArray, is_turned: bool, is_result_turned: bool, partner: bytes) -> IntArray:
    rows = (table.T if is_turned else table)[np.frombuffer(partner, dtype=np.int64)]
    return rows.T if is_result_turned else rows


def _described(terms: list[Term]) -> tuple[tuple[int, int, int], ...]:
    """Returns (rank of start, rank of stop, identity of usage) of each term, in some order."""
    if len(terms) <= 1:
        return tuple((0, 1, id(term.usage)) for term in terms)
    moments = sorted({moment for term in terms for moment in (term.start, term.stop)})
    rank = {moment: i for i, moment in enumerate(moments)}
    return tuple(sorted((rank[term.start], rank[term.stop], id(term.usage)) for term in terms))


@dataclass(slots=True)
class ChoiceGraph:
    """A problem being reduced: at most one table a pair, tables interned, choices by number.

    Args:
        node_costs: int64[surviving choices] per node, None once the node is gone.
        surviving: Original choice numbers per node.
        tables: int64[choices_u, choices_v] by pair ``u < v``.
        neighbours: Of each node.
        node_terms: Memory decided by one node.
        pair_terms: Memory decided by a pair, usage indexed as its table.
        held_terms: Memory held whatever is chosen (usage of one entry).
        constant: Cost paid whatever is chosen.
        is_infeasible: Some node has no allowed choice.
        undo: How the nodes that are gone follow from those left, in order of leaving.
        dirty: Nodes whose surroundings changed since the rules last saw them.
        sum_terms_from: How many memory terms a node may have before they are summed.
    """

    node_costs: list[IntArray | None]
    surviving: list[IntArray]
    tables: dict[Pair, IntArray]
    neighbours: list[set[int]]
    node_terms: list[list[Term]]
    pair_terms: dict[Pair, list[Term]]
    held_terms: list[Term]
    cache: TableCache
    constant: int = 0
    is_infeasible: bool = False
    undo: list[Fixed | Merged] = field(default_factory=list)
    dirty: set[int] = field(default_factory=set)
    sum_terms_from: dict[int, int] = field(default_factory=dict)

    @classmethod
    def from_problem(cls, problem: Problem) -> ChoiceGraph:
        """Sums parallel edges, caps forbidden costs and copies the memory terms."""
        cache = TableCache()
        distinct = {id(costs): costs for costs in problem.node_costs}
        saturated = {key: cache.intern(saturate(costs)) for key, costs in distinct.items()}
        graph = cls(
            node_costs=[saturated[id(costs)] for costs in problem.node_costs],
            surviving=[np.arange(len(costs), dtype=np.int64) for costs in problem.node_costs],
            tables={},
            neighbours=[set() for _ in problem.node_costs],
            node_terms=[[] for _ in problem.node_costs],
            pair_terms={},
            held_terms=[],
            cache=cache,
            dirty=set(range(problem.num_nodes)),
        )
        interned: dict[tuple[int, bool], IntArray] = {}
        for edge in problem.edges:
            is_turned = edge.u > edge.v
            key = (id(edge.costs), is_turned)
            if key not in interned:
                table = saturate(edge.costs.T if is_turned else edge.costs)
                interned[key] = cache.intern(table)
            graph.add_table(min(edge.u, edge.v), max(edge.u, edge.v), interned[key])
        usages: dict[tuple[int, bool], IntArray] = {}

        is_held: dict[int, bool] = {}

        def does_hold(term: NodeMemory | EdgeMemory) -> bool:
            key = id(term.usage)
            if key not in is_held:
                is_held[key] = bool(term.usage.any())
            return is_held[key] and term.start < term.stop

        def usage_of(term: NodeMemory | EdgeMemory, is_turned: bool) -> IntArray:
            key = (id(term.usage), is_turned)
            if key not in usages:
                usages[key] = cache.intern(term.usage.T if is_turned else term.usage)
            return usages[key]

        for term in problem.node_memory:
            if does_hold(term):
                usage = usage_of(term, False)
                graph.node_terms[term.node].append(Term(term.start, term.stop, usage))
        for pair_term in problem.edge_memory:
            edge = problem.edges[pair_term.edge]
            if does_hold(pair_term):
                usage = usage_of(pair_term, edge.u > edge.v)
                graph.pair_terms.setdefault((min(edge.u, edge.v), max(edge.u, edge.v)), []).append(
                    Term(pair_term.start, pair_term.stop, usage)
                )
        return graph

    def nodes(self) -> Iterator[int]:
        """The nodes still there, in order."""
        return (node for node, costs in enumerate(self.node_costs) if costs is not None)

    def costs_of(self, node: int) -> IntArray:
        """The costs of a node still there."""
        costs = self.node_costs[node]
        assert costs is not None
        return costs

    def table(self, node: int, other: int) -> IntArray:
        """The table of a pair with `node` in the rows (a view, not to be written to)."""
        return self.tables[node, other] if node < other else self.tables[other, node].T

    def base_table(self, node: int, other: int) -> IntArray:
        """The interned table of a pair, as stored (lower node in the rows)."""
        return self.tables[pair_of(node, other)]

    def add_node_costs(self, node: int, costs: IntArray) -> None:
        """Adds to what a node pays; `costs` must be interned."""
        self.node_costs[node] = self.cache.compute(add, self.costs_of(node), costs)
        self.dirty.add(node)

    def add_table(self, u: int, v: int, table: IntArray) -> None:
        """Adds to what the pair ``u < v`` pays; `table` must be interned."""
        present = self.tables.get((u, v))
        if present is None:
            self.tables[u, v] = table
        else:
            self.tables[u, v] = self.cache.compute(add, present, table)
        self.neighbours[u].add(v)
        self.neighbours[v].add(u)
        self.dirty.update((u, v))

    def drop_pair(self, u: int, v: int) -> None:
        """Removes the table and the memory terms of a pair."""
        pair = pair_of(u, v)
        del self.tables[pair]
        self.pair_terms.pop(pair, None)
        self.neighbours[u].discard(v)
        self.neighbours[v].discard(u)
        self.dirty.update((u, v))

    def terms_between(self, node: int, other: int) -> list[Term]:
        """Memory terms of a pair with `node` in the rows."""
        terms = self.pair_terms.get(pair_of(node, other), [])
        if node < other or not terms:
            return terms
        return [Term(term.start, term.stop, term.usage.T) for term in terms]

    def add_pair_terms(self, node: int, other: int, terms: list[Term]) -> None:
        """Adds memory terms to a pair, given with `node` in the rows."""
        if node > other:
            terms = [Term(t.start, t.stop, self.cache.intern(t.usage.T)) for t in terms]
        else:
            terms = [Term(t.start, t.stop, self.cache.intern(t.usage)) for t in terms]
        if terms:
            self.pair_terms.setdefault(pair_of(node, other), []).extend(terms)

    def keep_choices(self, node: int, keep: npt.NDArray[np.bool_]) -> None:
        """Removes the choices of `node` that ``bool[choices]`` does not keep."""
        if not keep.any():
            self.is_infeasible = True
            return
        mask = keep.tobytes()
        self.node_costs[node] = self.cache.intern(self.costs_of(node)[keep])
        self.surviving[node] = self.surviving[node][keep]
        self.node_terms[node] = [
            Term(t.start, t.stop, self.cache.compute(_kept, t.usage, extra=(0, mask)))
            for t in self.node_terms[node]
        ]
        for other in self.neighbours[node]:
            pair = pair_of(node, other)
            axis = 0 if node < other else 1
            self.tables[pair] = self.cache.compute(_kept, self.tables[pair], extra=(axis, mask))
            if pair in self.pair_terms:
                self.pair_terms[pair] = [
                    Term(t.start, t.stop, self.cache.compute(_kept, t.usage, extra=(axis, mask)))
                    for t in self.pair_terms[pair]
                ]
            self.dirty.add(other)
        self.dirty.add(node)

    def fix(self, node: int) -> None:
        """Takes out a node with one choice: its costs and memory go to its neighbours."""
        cost = int(self.costs_of(node)[0])
        if cost >= FORBIDDEN_FROM:
            self.is_infeasible = True
            return
        self.constant += cost
        self.held_terms += self.node_terms[node]
        for other in sorted(self.neighbours[node]):
            self.node_costs[other] = self.cache.compute(
                _with_only_row,
                self.costs_of(other),
                self.base_table(node, other),
                extra=(node > other,),
            )
            self.node_terms[other] += [
                Term(term.start, term.stop, self.cache.intern(term.usage[0]))
                for term in self.terms_between(node, other)
            ]
            self.drop_pair(node, other)
            self.sum_many_terms(other)
        self.undo.append(Fixed(node, int(self.surviving[node][0])))
        self.forget(node)

    def merge(self, node: int, leader: int, partner: IntArray) -> None:
        """Lets `node` take choice ``partner[choice of leader]``, and takes it out."""
        map_bytes = partner.tobytes()
        self.node_costs[leader] = self.cache.compute(
            _merged_costs,
            self.base_table(leader, node),
            self.costs_of(node),
            self.costs_of(leader),
            extra=(leader > node, map_bytes),
        )
        self.node_terms[leader] += [
            Term(t.start, t.stop, self.cache.compute(taken, t.usage, extra=(map_bytes,)))
            for t in self.node_terms[node]
        ]
        self.node_terms[leader] += [
            Term(t.start, t.stop, self.cache.intern(t.usage[np.arange(len(partner)), partner]))
            for t in self.terms_between(leader, node)
        ]
        self.drop_pair(leader, node)
        for other in sorted(self.neighbours[node]):
            low, high = min(leader, other), max(leader, other)
            moved = self.cache.compute(
                _followed,
                self.base_table(node, other),
                extra=(node > other, other < leader, map_bytes),
            )
            self.add_table(low, high, moved)
            followed = [
                Term(term.start, term.stop, term.usage[partner])
                for term in self.terms_between(node, other)
            ]
            self.add_pair_terms(leader, other, followed)
            self.drop_pair(node, other)
        surviving, follows = self.surviving[leader], self.surviving[node][partner]
        num_original = int(surviving[-1]) + 1
        by_original = follows
        if num_original > len(surviving):
            by_original = np.full(num_original, -1, dtype=np.int64)
            by_original[surviving] = follows
        self.undo.append(Merged(node, leader, by_original))
        self.forget(node)
        self.sum_many_terms(leader)

    def shift_to_constant(self) -> None:
        """Moves each node's least cost into the constant, so that costs are non-negative."""
        for node in self.nodes():
            costs = self.costs_of(node)
            least = int(costs.min())
            if least and least < FORBIDDEN_FROM:
                shifted = np.where(costs >= FORBIDDEN_FROM, FORBIDDEN, costs - least)
                self.node_costs[node] = self.cache.intern(shifted)
                self.constant += least

    def sum_many_terms(self, node: int) -> None:
        """Keeps the number of terms at the number of times something changes, within a factor."""
        if len(self.node_terms[node]) >= self.sum_terms_from.get(node, _MANY_TERMS):
            self.node_terms[node] = [
                Term(term.start, term.stop, self.cache.intern(term.usage))
                for term in summed_terms(self.node_terms[node])
            ]
            self.sum_terms_from[node] = max(_MANY_TERMS, 2 * len(self.node_terms[node]))

    def surroundings(self, node: int) -> tuple[object, ...]:
        """Describes a node's costs, usages, tables and its pairs' usages, but not who is around.

        Two nodes of one description, in a repeated layer for example, look alike to a rule that
        does not ask further.
        """
        around = []
        for other in self.neighbours[node]:
            pair = pair_of(node, other)
            terms = self.pair_terms.get(pair)
            described = () if terms is None else _described(terms)
            around.append((id(self.tables[pair]), node > other, described))
        around.sort()
        return (id(self.costs_of(node)), _described(self.node_terms[node]), *around)

    def forget(self, node: int) -> None:
        """Takes a node out; its pairs are gone already or about to go."""
        self.node_costs[node] = None
        self.node_terms[node] = []
        self.dirty.discard(node)
