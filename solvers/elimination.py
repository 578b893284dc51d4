"""Exact elimination of nodes one by one: dynamic programming along an elimination order.

Eliminating a node replaces everything it pays by one table over its neighbours: the least the node
can add, for each choice of theirs. The order is greedy (smallest new table first). Equal tables are
recognised by identity, so that equal layers are computed once.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from solvers.kernels import compiled
from solvers.problem import FORBIDDEN, IntArray
from solvers.saturating import FORBIDDEN_FROM, add, saturate_in_place

LARGEST_TABLE = 4_000_000
"""Entries of the largest table an elimination may make (32 MB)."""

LARGEST_WORK = 4e9
"""Additions the whole elimination may take, repeated layers counted each time."""

_BLOCK = 1 << 17
_SATURATE_EVERY = 32


@dataclass(frozen=True, slots=True)
class EliminationOrder:
    """Which node goes when.

    Args:
        steps: (node, its neighbours then, ascending), in order.
        kept: Nodes that stay, ascending.
        num_entries: Entries of all tables made.
        num_additions: Entries times choices of the node that goes.
    """

    steps: tuple[tuple[int, tuple[int, ...]], ...]
    kept: tuple[int, ...]
    num_entries: int
    num_additions: int


def order_elimination(
    num_choices: Sequence[int],
    pairs: Iterable[tuple[int, int]],
    *,
    keep: frozenset[int] = frozenset(),
    largest_table: int = LARGEST_TABLE,
    largest_work: float = LARGEST_WORK,
    most_neighbours: int | None = None,
) -> EliminationOrder:
    """Finds an order greedily: always the node that leaves the smallest table.

    Args:
        num_choices: Per node.
        pairs: Which nodes share a table.
        keep: Nodes that must stay.
        largest_table: A node whose elimination makes a larger one stays.
        largest_work: Elimination stops before more additions than this.
        most_neighbours: A node with more stays (2 keeps all tables pairwise).
    """
    neighbours: list[set[int]] = [set() for _ in num_choices]
    for u, v in pairs:
        neighbours[u].add(v)
        neighbours[v].add(u)
    bits = [math.log2(count) for count in num_choices]
    table_bits = [sum(bits[other] for other in others) for others in neighbours]
    limit_bits = math.log2(largest_table) + 1e-9

    def is_small(node: int) -> bool:
        if node in keep or table_bits[node] > limit_bits:
            return False
        return most_neighbours is None or len(neighbours[node]) <= most_neighbours

    def entry(node: int) -> tuple[float, int, int]:
        return (round(table_bits[node] + 0.1 * bits[node], 6), len(neighbours[node]), node)

    heap = [entry(node) for node in range(len(num_choices)) if is_small(node)]
    heapq.heapify(heap)
    gone = [False] * len(num_choices)
    steps: list[tuple[int, tuple[int, ...]]] = []
    num_entries = num_additions = 0
    while heap:
        popped = heapq.heappop(heap)
        node = popped[2]
        if gone[node] or popped != entry(node):
            continue
        around = sorted(neighbours[node])
        size = math.prod(num_choices[other] for other in around)
        if num_additions + size * num_choices[node] > largest_work:
            continue
        num_entries += size
        num_additions += size * num_choices[node]
        gone[node] = True
        steps.append((node, tuple(around)))
        for other in around:
            neighbours[other].discard(node)
            table_bits[other] -= bits[node]
        for i, first in enumerate(around):
            for second in around[i + 1 :]:
                if second not in neighbours[first]:
                    neighbours[first].add(second)
                    neighbours[second].add(first)
                    table_bits[first] += bits[second]
                    table_bits[second] += bits[first]
        for other in around:
            if is_small(other):
                heapq.heappush(heap, entry(other))
    kept = tuple(node for node in range(len(num_choices)) if not gone[node])
    return EliminationOrder(tuple(steps), kept, num_entries, num_additions)


@dataclass(frozen=True, slots=True, eq=False)
class Factor:
    """A table over some nodes: int64[choices of each node of the ascending scope]."""

    scope: tuple[int, ...]
    table: IntArray


class EliminationCache:
    """Tables made before, by the identity of what they were made from; the last two runs' only."""

    def __init__(self) -> None:
        self._before: dict[object, tuple[IntArray, tuple[IntArray, ...]]] = {}
        self._now: dict[object, tuple[IntArray, tuple[IntArray, ...]]] = {}

    def start_run(self) -> None:
        self._before, self._now = self._now, {}

    def get(self, key: object) -> IntArray | None:
        found = self._now.get(key)
        if found is None:
            found = self._before.get(key)
            if found is None:
                return None
            self._now[key] = found
        return found[0]

    def put(self, key: object, table: IntArray, sources: tuple[IntArray, ...]) -> None:
        """Keeps `table`, and its sources alive so that their identities stay theirs."""
        self._now[key] = (table, sources)


@dataclass(frozen=True, slots=True, eq=False)
class Elimination:
    """A finished elimination.

    Args:
        order: What was eliminated.
        constant: Least cost of everything that lost its last neighbour; `FORBIDDEN` or more where
            no allowed choice exists.
        factors: Tables over the kept nodes.
        factors_by_step: What each eliminated node paid, for the way back.
    """

    order: EliminationOrder
    constant: int
    factors: tuple[Factor, ...]
    factors_by_step: tuple[tuple[Factor, ...], ...]

    def complete(self, choices: IntArray) -> IntArray:
        """Fills in the best choices of the eliminated nodes, given those of the kept ones.

        Args:
            choices: int64[nodes]; entries of eliminated nodes are overwritten.
        """
        for (node, _), factors in zip(
            reversed(self.order.steps), reversed(self.factors_by_step), strict=True
        ):
            paid: IntArray | None = None
            for factor in factors:
                at = tuple(
                    slice(None) if other == node else int(choices[other]) for other in factor.scope
                )
                column = factor.table[at]
                paid = column if paid is None else add(paid, column)
            choices[node] = 0 if paid is None else int(paid.argmin())
        return choices


@dataclass(slots=True)
class _Buckets:
    by_node: dict[int, list[Factor]] = field(default_factory=dict)
    position: dict[int, int] = field(default_factory=dict)
    left: list[Factor] = field(default_factory=list)

    def put(self, factor: Factor) -> None:
        first = min(factor.scope, key=lambda node: self.position.get(node, math.inf))
        if first in self.position:
            self.by_node.setdefault(first, []).append(factor)
        else:
            self.left.append(factor)


def eliminate(
    order: EliminationOrder,
    node_costs: Sequence[IntArray],
    tables: Mapping[tuple[int, int], IntArray],
    cache: EliminationCache | None = None,
) -> Elimination:
    """Computes the tables an order makes.

    Args:
        order: From `order_elimination` for the same pairs.
        node_costs: int64[num_choices] per node, saturated.
        tables: int64[num_choices_u, num_choices_v] by pair ``u < v``, saturated.
        cache: Reused between runs whose tables are partly the same objects.
    """
    cache = cache if cache is not None else EliminationCache()
    cache.start_run()
    buckets = _Buckets(position={node: i for i, (node, _) in enumerate(order.steps)})
    for node, costs in enumerate(node_costs):
        buckets.put(Factor((node,), costs))
    for pair, table in tables.items():
        buckets.put(Factor(pair, table))
    constant = 0
    factors_by_step: list[tuple[Factor, ...]] = []
    for node, around in order.steps:
        factors = tuple(buckets.by_node.pop(node, ()))
        factors_by_step.append(factors)
        table = _eliminate_one(node, around, factors, [len(node_costs[n]) for n in around], cache)
        if around:
            buckets.put(Factor(around, table))
        else:
            constant += int(table.item())
    return Elimination(order, constant, tuple(buckets.left), tuple(factors_by_step))


def _eliminate_one(
    node: int,
    around: tuple[int, ...],
    factors: tuple[Factor, ...],
    shape: list[int],
    cache: EliminationCache,
) -> IntArray:
    place = {other: i + 1 for i, other in enumerate(around)}
    place[node] = 0
    described = sorted(
        ((id(f.table), tuple(place[other] for other in f.scope), f.table) for f in factors),
        key=lambda item: item[:2],
    )
    key = (tuple(shape), tuple(item[:2] for item in described))
    found = cache.get(key)
    if found is None:
        found = _least(len(shape) + 1, shape, [(item[1], item[2]) for item in described])
        cache.put(key, found, tuple(item[2] for item in described))
    return found


def _least(
    num_axes: int, shape: list[int], factors: list[tuple[tuple[int, ...], IntArray]]
) -> IntArray:
    """Sums factors over axes (0 is the node that goes), and takes the minimum over axis 0."""
    by_axes: dict[tuple[int, ...], IntArray] = {}
    for axes, table in factors:
        order = tuple(int(i) for i in np.argsort(axes))
        ascending = tuple(axes[i] for i in order)
        turned = table.transpose(order)
        present = by_axes.get(ascending)
        by_axes[ascending] = turned if present is None else add(present, turned)
    # Small ones first, each into a larger one that covers it.
    for axes in sorted(by_axes, key=len):
        covers = [other for other in by_axes if len(other) > len(axes) and set(axes) < set(other)]
        if covers:
            target = min(covers, key=lambda other: (by_axes[other].size, other))
            table = by_axes.pop(axes)
            expanded = _expand(axes, table, target)
            by_axes[target] = add(by_axes[target], expanded)
    full = tuple(range(num_axes))
    if by_axes.keys() == {(0, 1), (0, 2)}:
        return _least_sums(by_axes[0, 1].T, by_axes[0, 2])
    parts = [_expand(axes, table, full) for axes, table in by_axes.items()]
    count = max(part.shape[0] for part in parts)
    size = math.prod(shape)
    step = max(1, _BLOCK // max(1, size))
    result: IntArray | None = None
    for start in range(0, count, step):
        total: IntArray | None = None
        for i, part in enumerate(parts):
            piece = part[start : start + step] if part.shape[0] > 1 else part
            total = piece if total is None else total + piece
            if i % _SATURATE_EVERY == _SATURATE_EVERY - 1:
                total = saturate_in_place(total)
        assert total is not None
        least = total.min(axis=0)
        result = least if result is None else np.minimum(result, least, out=result)
    assert result is not None
    if result.shape != tuple(shape):
        result = np.broadcast_to(result, shape)
    high = result >= FORBIDDEN_FROM
    return (
        np.where(high, FORBIDDEN, result)
        if high.any()
        else np.ascontiguousarray(result).reshape(shape)
    )


def _least_sums(first: IntArray, second: IntArray) -> IntArray:
    """Returns int64[y, z]: ``min over x of first[y, x] + second[x, z]``, saturated."""
    least = np.empty((first.shape[0], second.shape[1]), dtype=np.int64)
    _find_least_sums(np.ascontiguousarray(first), np.ascontiguousarray(second), least)
    return least


@compiled
def _find_least_sums(first: IntArray, second: IntArray, least: IntArray) -> None:
    """Sets what `_least_sums` returns."""
    for y in range(least.shape[0]):
        row = least[y]
        row[:] = FORBIDDEN
        for x in range(second.shape[0]):
            paid, added = first[y, x], second[x]
            if paid < FORBIDDEN_FROM:
                for z in range(len(row)):
                    row[z] = min(row[z], paid + added[z])
        for z in range(len(row)):
            if row[z] >= FORBIDDEN_FROM:
                row[z] = FORBIDDEN


def _expand(axes: tuple[int, ...], table: IntArray, target: tuple[int, ...]) -> IntArray:
    """Returns a view with an axis of length 1 for each axis of `target` that `axes` lacks."""
    shape = iter(table.shape)
    return table.reshape([next(shape) if axis in axes else 1 for axis in target])
