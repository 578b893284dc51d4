"""What an elimination works with: factors, which nodes they speak of, and their sums.

A factor is a table over a few nodes: an edge's own, or one that took the place of eliminated nodes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from solvers.kernels import FlatGraph, FloatArray, compiled_part
from solvers.problem import IntArray
from solvers.scalable.layout import Layout

MOST_SCOPE = 10
"""Nodes a table may speak of."""

MOST_ENTRIES = 8_000_000
"""Of all tables of a region; nodes are held once they are used up."""

NUM_BUCKETS = 64

CELLS, FACTORS, ENTRIES, LINKS, STAMP, ELIMINATED = range(6)
"""Places in `Tables.counts`: how many of each are used so far."""


class Tables(NamedTuple):
    """Scratch of an elimination. Factors below `num_pairs` are edges, the others were computed.

    Args:
        place: int64[nodes]: place in the region, -1 outside it.
        nodes: int64[nodes]: the region, one after another.
        waiting: int64[nodes + halves]: nodes that may join it.
        own: float64[choices]: what a choice costs beyond all factors.
        status: int64[nodes]: 0 open, 1 eliminated, 2 held.
        head: int64[nodes]: first cell of a node's factors.
        cells: int64[cells, 2]: factor, next cell.
        scope: int64[factors, MOST_SCOPE]: nodes, the last side by side.
        num_scope: int64[factors]: how many nodes; negative once used up.
        first: int64[factors]: first entry, in the edges' tables or in `entries`.
        is_edge: int64[factors]: which of the two.
        entries: float64[entries].
        key: int64[nodes]: bucket a node waits in, -1 for none.
        bucket: int64[NUM_BUCKETS]: first link of each.
        links: int64[links, 2]: node, next link.
        order: int64[nodes]: as eliminated.
        used: int64[nodes + 1]: first of its factors in `used_factors`.
        used_factors: int64[cells].
        stamp: int64[nodes].
        sums: float64[most entries of a table]: scratch.
        after: int64[nodes]: choices found.
        lists: int64[4, MOST_SCOPE]: scratch: nodes found, others, strides, places.
    """

    place: IntArray
    nodes: IntArray
    waiting: IntArray
    own: FloatArray
    status: IntArray
    head: IntArray
    cells: IntArray
    scope: IntArray
    num_scope: IntArray
    first: IntArray
    is_edge: IntArray
    entries: FloatArray
    key: IntArray
    bucket: IntArray
    links: IntArray
    order: IntArray
    used: IntArray
    used_factors: IntArray
    stamp: IntArray
    sums: FloatArray
    after: IntArray
    lists: IntArray
    counts: IntArray  # cells, factors, entries, links, stamp, eliminated


def make_tables(layout: Layout, most_entries: int) -> Tables:
    """Allocates scratch for tables of up to `most_entries`."""
    num_nodes = layout.problem.num_nodes
    num_halves = len(layout.graph.half_far)
    factors = num_halves // 2 + 12 * num_nodes + 64
    cells = num_halves + MOST_SCOPE * 8 * num_nodes + 256

    def integers(*shape: int) -> IntArray:
        return np.zeros(shape, dtype=np.int64)

    return Tables(
        place=np.full(num_nodes, -1, dtype=np.int64),
        nodes=integers(num_nodes),
        waiting=integers(num_nodes + num_halves),
        own=np.zeros(len(layout.graph.costs)),
        status=integers(num_nodes),
        head=integers(num_nodes),
        cells=integers(cells, 2),
        scope=integers(factors, MOST_SCOPE),
        num_scope=integers(factors),
        first=integers(factors),
        is_edge=integers(factors),
        entries=np.zeros(MOST_ENTRIES),
        key=np.full(num_nodes, -1, dtype=np.int64),
        bucket=integers(NUM_BUCKETS),
        links=integers(16 * num_nodes + 8 * num_halves + 64, 2),
        order=integers(num_nodes),
        used=integers(num_nodes + 1),
        used_factors=integers(cells),
        stamp=integers(num_nodes),
        sums=np.zeros(most_entries),
        after=integers(num_nodes),
        lists=integers(4, MOST_SCOPE),
        counts=integers(6),
    )


@compiled_part
def list_factor(tables: Tables, factor: int) -> None:
    for k in range(tables.num_scope[factor]):
        node = tables.scope[factor, k]
        cell = tables.counts[CELLS]
        tables.counts[CELLS] += 1
        tables.cells[cell, 0] = factor
        tables.cells[cell, 1] = tables.head[node]
        tables.head[node] = cell


@compiled_part
def neighbours(
    graph: FlatGraph, tables: Tables, node: int, most_entries: int, found: IntArray
) -> int:
    """Lists the nodes a node shares factors with; -1 where eliminating it takes too large a table.

    Unlinks factors that are used up on the way.
    """
    tables.counts[STAMP] += 1
    stamp = tables.counts[STAMP]
    tables.stamp[node] = stamp
    size = graph.node_start[node + 1] - graph.node_start[node]
    num_found = 0
    last = -1
    cell = tables.head[node]
    while cell >= 0:
        factor = tables.cells[cell, 0]
        following = tables.cells[cell, 1]
        if tables.num_scope[factor] <= 0:
            if last < 0:
                tables.head[node] = following
            else:
                tables.cells[last, 1] = following
            cell = following
            continue
        last = cell
        cell = following
        for k in range(tables.num_scope[factor]):
            far = tables.scope[factor, k]
            if tables.stamp[far] != stamp:
                tables.stamp[far] = stamp
                size *= graph.node_start[far + 1] - graph.node_start[far]
                if num_found == MOST_SCOPE - 1 or size > most_entries:
                    return -1
                found[num_found] = far
                num_found += 1
    return num_found


@compiled_part
def joined_nodes(tables: Tables, node: int) -> int:
    """Lists in ``tables.waiting`` all nodes a node shares factors with; returns how many."""
    tables.counts[STAMP] += 1
    stamp = tables.counts[STAMP]
    tables.stamp[node] = stamp
    num_found = 0
    cell = tables.head[node]
    while cell >= 0:
        factor = tables.cells[cell, 0]
        cell = tables.cells[cell, 1]
        for k in range(tables.num_scope[factor]):
            far = tables.scope[factor, k]
            if tables.stamp[far] != stamp:
                tables.stamp[far] = stamp
                tables.waiting[num_found] = far
                num_found += 1
    return num_found


@compiled_part
def entries_over(graph: FlatGraph, nodes: IntArray, num_nodes: int) -> int:
    """Returns how many entries a table over nodes has."""
    size = 1
    for k in range(num_nodes):
        size *= graph.node_start[nodes[k] + 1] - graph.node_start[nodes[k]]
    return size


@compiled_part
def scope_without(tables: Tables, factor: int, node: int, scope: IntArray) -> int:
    """Lists a factor's nodes but one; returns how many."""
    num_found = 0
    for k in range(tables.num_scope[factor]):
        far = tables.scope[factor, k]
        if far != node:
            scope[num_found] = far
            num_found += 1
    return num_found


@compiled_part
def _set_strides(
    graph: FlatGraph,
    tables: Tables,
    factor: int,
    node: int,
    choice: int,
    found: IntArray,
    num_found: int,
    strides: IntArray,
) -> int:
    """Finds how a factor's entries step with each node found; returns its first entry."""
    first: int = tables.first[factor]
    for k in range(num_found):
        strides[k] = 0
    stride = 1
    for k in range(tables.num_scope[factor] - 1, -1, -1):
        far = tables.scope[factor, k]
        if far == node:
            first += choice * stride
        else:
            for j in range(num_found):
                if found[j] == far:
                    strides[j] = stride
        stride *= graph.node_start[far + 1] - graph.node_start[far]
    return first


@compiled_part
def add_factor(
    graph: FlatGraph,
    data: FloatArray,
    tables: Tables,
    factor: int,
    node: int,
    choice: int,
    found: IntArray,
    num_found: int,
    size: int,
    strides: IntArray,
    places: IntArray,
) -> None:
    """Adds a factor, with a node at a choice, to ``tables.sums`` over the nodes found."""
    first = _set_strides(graph, tables, factor, node, choice, found, num_found, strides)
    last = found[num_found - 1]
    inner = graph.node_start[last + 1] - graph.node_start[last]
    inner_stride = strides[num_found - 1]
    for k in range(num_found):
        places[k] = 0
    at = 0
    sums = tables.sums
    while at < size:
        if inner_stride == 0:
            added = data[first]
            for z in range(inner):
                sums[at + z] += added
        elif inner_stride == 1:
            for z in range(inner):
                sums[at + z] += data[first + z]
        else:
            for z in range(inner):
                sums[at + z] += data[first + z * inner_stride]
        at += inner
        k = num_found - 2
        while k >= 0:
            places[k] += 1
            first += strides[k]
            num_choices = graph.node_start[found[k] + 1] - graph.node_start[found[k]]
            if places[k] < num_choices:
                break
            first -= num_choices * strides[k]
            places[k] = 0
            k -= 1


@compiled_part
def is_full(tables: Tables, most_entries: int) -> bool:
    return bool(
        tables.counts[ENTRIES] + most_entries > len(tables.entries)
        or tables.counts[FACTORS] == len(tables.first)
        or tables.counts[CELLS] + MOST_SCOPE > len(tables.cells)
    )
