"""A problem as flat arrays: what looks at all of its nodes, edges and terms at once reads these."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from solvers.problem import Edge, EdgeMemory, IntArray, NodeMemory, Problem

_MOST_JOINED = 4096
"""Entries of an array that is copied, to be read together with others. A choice."""


@dataclass(frozen=True, eq=False)
class SharedArrays:
    """Arrays many of which are one and the same, as repeated parts share theirs.

    Args:
        distinct: Each once, in the order in which they come.
        index: int64[arrays]: the place of each in `distinct`.
    """

    distinct: tuple[IntArray, ...]
    index: IntArray

    @staticmethod
    def of(arrays: Sequence[IntArray]) -> SharedArrays:
        place: dict[int, int] = {}
        found = [place.setdefault(key, len(place)) for key in map(id, arrays)]
        by_key = dict(zip(map(id, arrays), arrays, strict=True))
        return SharedArrays(tuple(by_key.values()), np.array(found, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.index)

    def of_each(self, of_one: Callable[[IntArray], int]) -> IntArray:
        """Returns int64[arrays]: a number of each, asked once of those that are one."""
        return np.array(list(map(of_one, self.distinct)), dtype=np.int64)[self.index]

    @cached_property
    def last_sizes(self) -> IntArray:
        """int64[arrays]: entries along the last dimension."""
        return self.of_each(lambda array: array.shape[-1])

    @cached_property
    def _joined(self) -> tuple[IntArray, IntArray, dict[int, IntArray]]:
        """Small arrays end to end, the first entry of each, and by large one who has it."""
        small = [array if array.size <= _MOST_JOINED else array[:0] for array in self.distinct]
        first = np.cumsum([0, *(array.size for array in small)])[:-1]
        large = {
            place: np.flatnonzero(self.index == place)
            for place, array in enumerate(self.distinct)
            if array.size > _MOST_JOINED
        }
        entries = np.concatenate([np.zeros(1, np.int64), *map(np.ravel, small)])
        return entries, (1 + first)[self.index], large

    def at(self, places: IntArray) -> IntArray:
        """Returns int64[arrays]: the entry of each at a place in its flattened form."""
        entries, first, large = self._joined
        read = first + places
        for owners in large.values():
            read[owners] = 0
        found: IntArray = entries[read]
        for place, owners in large.items():
            found[owners] = self.distinct[place].ravel()[places[owners]]
        return found


@dataclass(frozen=True, eq=False)
class Flat:
    """A problem as flat arrays, each made when it is first asked for.

    Memory terms are in one row, those of nodes first.

    Args:
        node_costs: Of the problem.
        edges: Likewise.
        node_memory: Likewise.
        edge_memory: Likewise.
    """

    node_costs: tuple[IntArray, ...]
    edges: tuple[Edge, ...]
    node_memory: tuple[NodeMemory, ...]
    edge_memory: tuple[EdgeMemory, ...]

    @staticmethod
    def of(problem: Problem) -> Flat:
        """Returns the arrays of a problem, the same as long as it lives."""
        found = _FLAT.get(problem)
        if found is None:
            found = _FLAT[problem] = Flat(
                problem.node_costs, problem.edges, problem.node_memory, problem.edge_memory
            )
        return found

    @cached_property
    def costs(self) -> SharedArrays:
        """Of nodes."""
        return SharedArrays.of(self.node_costs)

    @cached_property
    def tables(self) -> SharedArrays:
        """Of edges."""
        return SharedArrays.of([edge.costs for edge in self.edges])

    @cached_property
    def u(self) -> IntArray:
        """int64[edges]."""
        return _column(self.edges, "u")

    @cached_property
    def v(self) -> IntArray:
        """int64[edges]."""
        return _column(self.edges, "v")

    @cached_property
    def node_of_term(self) -> IntArray:
        """int64[terms of nodes]."""
        return _column(self.node_memory, "node")

    @cached_property
    def edge_of_term(self) -> IntArray:
        """int64[terms of edges]."""
        return _column(self.edge_memory, "edge")

    @cached_property
    def terms(self) -> tuple[NodeMemory | EdgeMemory, ...]:
        """All of them."""
        return (*self.node_memory, *self.edge_memory)

    @cached_property
    def usages(self) -> SharedArrays:
        """Of terms."""
        return SharedArrays.of([term.usage for term in self.terms])

    @cached_property
    def starts(self) -> IntArray:
        """int64[terms]."""
        return _column(self.terms, "start")

    @cached_property
    def stops(self) -> IntArray:
        """int64[terms]."""
        return _column(self.terms, "stop")

    @cached_property
    def changes(self) -> tuple[IntArray, IntArray, IntArray]:
        """Times at which memory changes, and the place among them of each term's start and stop."""
        both = np.concatenate((self.starts, self.stops))
        times, places = np.unique(both, return_inverse=True)
        return times, places[: len(self.starts)], places[len(self.starts) :]

    def use(self, held: IntArray) -> IntArray:
        """Returns int64[times of changes]: the sum of int64[terms] from each on."""
        times, starts, stops = self.changes
        return use_between(starts, stops, held, len(times))

    def pairs(self, choices: IntArray) -> IntArray:
        """Returns int64[edges]: the place in each flattened table that choices of its ends pick."""
        return choices[self.u] * self.costs.last_sizes[self.v] + choices[self.v]

    def held(self, choices: IntArray) -> IntArray:
        """Returns int64[terms]: bytes that each holds with int64[nodes] choices."""
        of_edges = self.pairs(choices)[self.edge_of_term]
        return self.usages.at(np.concatenate((choices[self.node_of_term], of_edges)))


def use_between(starts: IntArray, stops: IntArray, held: IntArray, num_places: int) -> IntArray:
    """Returns int64[num_places]: what terms add up to that hold so much from a place to another."""
    change = np.zeros(num_places + 1, dtype=np.int64)
    np.add.at(change, starts, held)
    np.subtract.at(change, stops, held)
    found: IntArray = np.cumsum(change)[:-1]
    return found


_FLAT: WeakKeyDictionary[Problem, Flat] = WeakKeyDictionary()


def _column(items: Iterable[Any], name: str) -> IntArray:
    return np.array(list(map(attrgetter(name), items)), dtype=np.int64)
