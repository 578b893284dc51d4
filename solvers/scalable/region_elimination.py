"""Exact choices for a region, given the rest: elimination, with nodes held where it is wide.

A region is solved by eliminating node after node, cheapest first. Where every elimination that is
left would take a table above a size, the node with the most tables is held at its present choice
instead, and elimination goes on. So a region need not be a tree, and may be the whole problem.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from solvers.kernels import FlatGraph, FloatArray, compiled_part
from solvers.problem import IntArray
from solvers.scalable.layout import Layout
from solvers.scalable.tree_moves import NUM_NOISES, UIntArray, Walk, draw

MOST_SCOPE = 10
"""Nodes a table may speak of."""

MOST_ENTRIES = 8_000_000
"""Of all tables of a region; nodes are held once they are used up."""

_BUCKETS = 64


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
        bucket: int64[_BUCKETS]: first link of each.
        links: int64[links, 2]: node, next link.
        order: int64[nodes]: as eliminated.
        used: int64[nodes + 1]: first of its factors in `used_factors`.
        used_factors: int64[cells].
        stamp: int64[nodes].
        sums: float64[most entries of a table]: scratch.
        after: int64[nodes]: choices found.
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
    counts: IntArray  # cells, factors, entries, links, stamp, eliminated


_CELLS, _FACTORS, _ENTRIES, _LINKS, _STAMP, _ELIMINATED = range(6)


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
        bucket=integers(_BUCKETS),
        links=integers(16 * num_nodes + 8 * num_halves + 64, 2),
        order=integers(num_nodes),
        used=integers(num_nodes + 1),
        used_factors=integers(cells),
        stamp=integers(num_nodes),
        sums=np.zeros(most_entries),
        after=integers(num_nodes),
        counts=integers(6),
    )


@compiled_part
def _open_node(
    graph: FlatGraph,
    costs: FloatArray,
    edge_tables: FloatArray,
    tables: Tables,
    walk: Walk,
    node: int,
    temperature: float,
) -> None:
    start = graph.node_start[node]
    num_choices = graph.node_start[node + 1] - start
    own = tables.own[start : start + num_choices]
    for y in range(num_choices):
        own[y] = costs[start + y]
    if temperature > 0:
        at_noise = draw(walk.random) % (NUM_NOISES - num_choices)
        for y in range(num_choices):
            own[y] -= temperature * walk.noises[at_noise + y]
    tables.status[node] = 0
    tables.key[node] = -1
    tables.stamp[node] = 0
    for half in range(graph.half_start[node], graph.half_start[node + 1]):
        far = graph.half_far[half]
        if tables.place[far] < 0:
            row = graph.half_table[half] + walk.choices[far] * num_choices
            for y in range(num_choices):
                own[y] += edge_tables[row + y]
        elif far < node:
            factor = tables.counts[_FACTORS]
            tables.counts[_FACTORS] += 1
            tables.scope[factor, 0] = far
            tables.scope[factor, 1] = node
            tables.num_scope[factor] = 2
            tables.first[factor] = graph.half_table[half]
            tables.is_edge[factor] = 1
            _list_factor(tables, factor)


@compiled_part
def _list_factor(tables: Tables, factor: int) -> None:
    for k in range(tables.num_scope[factor]):
        node = tables.scope[factor, k]
        cell = tables.counts[_CELLS]
        tables.counts[_CELLS] += 1
        tables.cells[cell, 0] = factor
        tables.cells[cell, 1] = tables.head[node]
        tables.head[node] = cell


@compiled_part
def _neighbours(
    graph: FlatGraph, tables: Tables, node: int, most_entries: int, found: IntArray
) -> int:
    """Lists the nodes a node shares factors with; -1 where eliminating it takes too large a table.

    Unlinks factors that are used up on the way.
    """
    tables.counts[_STAMP] += 1
    stamp = tables.counts[_STAMP]
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
def _key_of(graph: FlatGraph, node: int, found: IntArray, num_found: int) -> int:
    """Returns the bucket for the table that eliminating a node takes."""
    size = float(graph.node_start[node + 1] - graph.node_start[node])
    for k in range(num_found):
        size *= graph.node_start[found[k] + 1] - graph.node_start[found[k]]
    return min(_BUCKETS - 1, int(2.0 * np.log2(size)))


@compiled_part
def _file(tables: Tables, node: int, key: int) -> None:
    """Puts a node into a bucket; what it left behind elsewhere no longer counts."""
    link = tables.counts[_LINKS]
    if tables.key[node] == key or link == len(tables.links):
        return
    tables.counts[_LINKS] += 1
    tables.key[node] = key
    tables.links[link, 0] = node
    tables.links[link, 1] = tables.bucket[key]
    tables.bucket[key] = link


@compiled_part
def _queue(graph: FlatGraph, tables: Tables, node: int, most_entries: int, found: IntArray) -> int:
    """Files an open node by what its elimination takes; returns its bucket, -1 for too much."""
    num_found = _neighbours(graph, tables, node, most_entries, found)
    if num_found < 0:
        tables.key[node] = -1
        return -1
    key = _key_of(graph, node, found, num_found)
    _file(tables, node, key)
    return key


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
def _add_factor(
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
def _eliminate(
    graph: FlatGraph,
    edge_tables: FloatArray,
    tables: Tables,
    node: int,
    found: IntArray,
    num_found: int,
    strides: IntArray,
    places: IntArray,
) -> None:
    """Replaces a node's factors by one over its neighbours."""
    start = graph.node_start[node]
    num_choices = graph.node_start[node + 1] - start
    size = 1
    for k in range(num_found):
        size *= graph.node_start[found[k] + 1] - graph.node_start[found[k]]
    done = tables.counts[_ELIMINATED]
    at_used = tables.used[done]
    cell = tables.head[node]
    while cell >= 0:
        if tables.num_scope[tables.cells[cell, 0]] > 0:
            tables.used_factors[at_used] = tables.cells[cell, 0]
            at_used += 1
        cell = tables.cells[cell, 1]
    tables.order[done] = node
    tables.used[done + 1] = at_used
    tables.counts[_ELIMINATED] += 1
    tables.status[node] = 1
    if num_found == 0:
        return
    first = tables.counts[_ENTRIES]
    least = tables.entries[first : first + size]
    for z in range(size):
        least[z] = np.inf
    sums = tables.sums[:size]
    for y in range(num_choices):
        own = tables.own[start + y]
        for z in range(size):
            sums[z] = own
        for k in range(tables.used[done], at_used):
            factor = tables.used_factors[k]
            data = edge_tables if tables.is_edge[factor] == 1 else tables.entries
            _add_factor(
                graph, data, tables, factor, node, y, found, num_found, size, strides, places
            )
        for z in range(size):
            least[z] = min(least[z], sums[z])
    for k in range(tables.used[done], at_used):
        # A negative count marks it as used up, and can be turned back for the way back.
        tables.num_scope[tables.used_factors[k]] *= -1
    if num_found == 1:
        own_start = graph.node_start[found[0]]
        for z in range(size):
            tables.own[own_start + z] += least[z]
        return
    tables.counts[_ENTRIES] += size
    factor = tables.counts[_FACTORS]
    tables.counts[_FACTORS] += 1
    tables.num_scope[factor] = num_found
    tables.first[factor] = first
    tables.is_edge[factor] = 0
    for k in range(num_found):
        tables.scope[factor, k] = found[k]
    _list_factor(tables, factor)


@compiled_part
def _hold(
    graph: FlatGraph,
    edge_tables: FloatArray,
    tables: Tables,
    node: int,
    choice: int,
    strides: IntArray,
    places: IntArray,
    scope: IntArray,
) -> None:
    """Fixes a node at a choice: its factors lose a dimension."""
    tables.status[node] = 2
    tables.key[node] = -1
    tables.after[node] = choice
    cell = tables.head[node]
    while cell >= 0:
        factor = tables.cells[cell, 0]
        cell = tables.cells[cell, 1]
        if tables.num_scope[factor] <= 0:
            continue
        num_found = 0
        size = 1
        for k in range(tables.num_scope[factor]):
            far = tables.scope[factor, k]
            if far != node:
                scope[num_found] = far
                num_found += 1
                size *= graph.node_start[far + 1] - graph.node_start[far]
        for z in range(size):
            tables.sums[z] = 0.0
        data = edge_tables if tables.is_edge[factor] == 1 else tables.entries
        _add_factor(
            graph, data, tables, factor, node, choice, scope, num_found, size, strides, places
        )
        if num_found == 1:
            tables.num_scope[factor] *= -1
            start = graph.node_start[scope[0]]
            for z in range(size):
                tables.own[start + z] += tables.sums[z]
            continue
        # Nobody read this factor yet, so that the slice may take its place.
        tables.num_scope[factor] = num_found
        for z in range(size):
            tables.entries[tables.first[factor] + z] = tables.sums[z]
        for k in range(num_found):
            tables.scope[factor, k] = scope[k]


@compiled_part
def _is_full(tables: Tables, most_entries: int) -> bool:
    return bool(
        tables.counts[_ENTRIES] + most_entries > len(tables.entries)
        or tables.counts[_FACTORS] == len(tables.first)
        or tables.counts[_CELLS] + MOST_SCOPE > len(tables.cells)
    )


@compiled_part
def _most_joined(tables: Tables, random: UIntArray, size: int) -> int:
    """Returns the open node with the most factors, chance playing a part; -1 where none is open."""
    best = -1
    best_score = -1.0
    for at in range(size):
        node = tables.nodes[at]
        if tables.status[node] != 0:
            continue
        joined = 1
        cell = tables.head[node]
        while cell >= 0:
            if tables.num_scope[tables.cells[cell, 0]] > 0:
                joined += 1
            cell = tables.cells[cell, 1]
        score = joined * (0.3 + draw(random) / 2.0**31)
        if score > best_score:
            best, best_score = node, score
    return best


@compiled_part
def _next_node(
    graph: FlatGraph, tables: Tables, lowest: int, most_entries: int, found: IntArray
) -> tuple[int, int]:
    """Takes a node out of a bucket; -1 where it no longer belongs there and was filed anew."""
    link = tables.bucket[lowest]
    node = tables.links[link, 0]
    tables.bucket[lowest] = tables.links[link, 1]
    if tables.status[node] != 0 or tables.key[node] != lowest:
        return -1, 0
    tables.key[node] = -1
    num_found = _neighbours(graph, tables, node, most_entries, found)
    if num_found < 0:
        return -1, 0
    key = _key_of(graph, node, found, num_found)
    if key > lowest:
        _file(tables, node, key)
        return -1, 0
    return node, num_found


@compiled_part
def _queue_all(
    graph: FlatGraph,
    tables: Tables,
    nodes: IntArray,
    num_nodes: int,
    most_entries: int,
    found: IntArray,
    lowest: int,
) -> int:
    """Files nodes; returns the lowest bucket, the one given counted in."""
    for k in range(num_nodes):
        key = _queue(graph, tables, nodes[k], most_entries, found)
        if key >= 0:
            lowest = min(lowest, key)
    return lowest


@compiled_part
def solve_region(
    graph: FlatGraph,
    costs: FloatArray,
    edge_tables: FloatArray,
    tables: Tables,
    walk: Walk,
    size: int,
    most_entries: int,
    temperature: float,
) -> int:
    """Sets ``tables.after`` for the region to its best choices, but for nodes that are held.

    Args:
        graph: The problem.
        costs: float64[choices]: what is minimised at nodes.
        edge_tables: float64[entries]: and at edges.
        tables: Its first `size` nodes are the region.
        walk: Choices of all other nodes, and of those held.
        size: Nodes of the region.
        most_entries: Of a table.
        temperature: Of the noise on node costs.

    Returns:
        How many nodes were held.
    """
    tables.counts[:] = 0
    tables.bucket[:] = -1
    tables.used[0] = 0
    found = np.zeros(MOST_SCOPE, dtype=np.int64)
    others = np.zeros(MOST_SCOPE, dtype=np.int64)
    strides = np.zeros(MOST_SCOPE, dtype=np.int64)
    places = np.zeros(MOST_SCOPE, dtype=np.int64)
    for at in range(size):
        tables.head[tables.nodes[at]] = -1
    for at in range(size):
        _open_node(graph, costs, edge_tables, tables, walk, tables.nodes[at], temperature)
    for at in range(size):
        _queue(graph, tables, tables.nodes[at], most_entries, found)
    num_held = 0
    lowest = 0
    while True:
        while lowest < _BUCKETS and tables.bucket[lowest] < 0:
            lowest += 1
        if lowest == _BUCKETS:
            node = _most_joined(tables, walk.random, size)
            if node < 0:
                break
            num_held += 1
            num_others = _joined_nodes(tables, node)
            _hold(graph, edge_tables, tables, node, walk.choices[node], strides, places, found)
            lowest = _queue_all(
                graph, tables, tables.waiting, num_others, most_entries, found, lowest
            )
            continue
        node, num_found = _next_node(graph, tables, lowest, most_entries, found)
        if node < 0:
            continue
        if _is_full(tables, most_entries):
            num_held += 1
            _hold(graph, edge_tables, tables, node, walk.choices[node], strides, places, others)
            continue
        _eliminate(graph, edge_tables, tables, node, found, num_found, strides, places)
        for k in range(num_found):
            others[k] = found[k]
        lowest = _queue_all(graph, tables, others, num_found, most_entries, found, lowest)
    _read_back(graph, edge_tables, tables, walk)
    return num_held


@compiled_part
def _joined_nodes(tables: Tables, node: int) -> int:
    """Lists in ``tables.waiting`` all nodes a node shares factors with; returns how many."""
    tables.counts[_STAMP] += 1
    stamp = tables.counts[_STAMP]
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
def _read_back(graph: FlatGraph, edge_tables: FloatArray, tables: Tables, walk: Walk) -> None:
    """Picks the choices of eliminated nodes, last eliminated first."""
    for at in range(tables.counts[_ELIMINATED] - 1, -1, -1):
        node = tables.order[at]
        start = graph.node_start[node]
        num_choices = graph.node_start[node + 1] - start
        own = tables.own[start : start + num_choices]
        for used in range(tables.used[at], tables.used[at + 1]):
            factor = tables.used_factors[used]
            first = tables.first[factor]
            stride = 1
            own_stride = 1
            for k in range(abs(tables.num_scope[factor]) - 1, -1, -1):
                far = tables.scope[factor, k]
                if far == node:
                    own_stride = stride
                else:
                    first += tables.after[far] * stride
                stride *= graph.node_start[far + 1] - graph.node_start[far]
            data = edge_tables if tables.is_edge[factor] == 1 else tables.entries
            for y in range(num_choices):
                own[y] += data[first + y * own_stride]
        best = walk.choices[node]
        for y in range(num_choices):
            if own[y] < own[best]:
                best = y
        tables.after[node] = best
