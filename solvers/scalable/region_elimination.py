"""Exact choices for a region, given the rest: elimination, with nodes held where it is wide.

A region is solved by eliminating node after node, cheapest first. Where every elimination that is
left would take a table above a size, the node with the most tables is held at its present choice
instead, and elimination goes on. So a region need not be a tree, and may be the whole problem.
"""

from __future__ import annotations

import numpy as np

from solvers.kernels import FlatGraph, FloatArray, compiled, compiled_part
from solvers.problem import IntArray
from solvers.scalable.region_factors import (
    ELIMINATED,
    ENTRIES,
    FACTORS,
    NUM_BUCKETS,
    Tables,
    add_factor,
    entries_over,
    is_full,
    joined_nodes,
    list_factor,
    scope_without,
)
from solvers.scalable.region_order import most_joined, next_node, queue_all
from solvers.scalable.tree_moves import NUM_NOISES, Walk, draw


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
            factor = tables.counts[FACTORS]
            tables.counts[FACTORS] += 1
            tables.scope[factor, 0] = far
            tables.scope[factor, 1] = node
            tables.num_scope[factor] = 2
            tables.first[factor] = graph.half_table[half]
            tables.is_edge[factor] = 1
            list_factor(tables, factor)


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
    size = entries_over(graph, found, num_found)
    done = tables.counts[ELIMINATED]
    at_used = tables.used[done]
    cell = tables.head[node]
    while cell >= 0:
        if tables.num_scope[tables.cells[cell, 0]] > 0:
            tables.used_factors[at_used] = tables.cells[cell, 0]
            at_used += 1
        cell = tables.cells[cell, 1]
    tables.order[done] = node
    tables.used[done + 1] = at_used
    tables.counts[ELIMINATED] += 1
    tables.status[node] = 1
    if num_found == 0:
        return
    first = tables.counts[ENTRIES]
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
            add_factor(
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
    tables.counts[ENTRIES] += size
    factor = tables.counts[FACTORS]
    tables.counts[FACTORS] += 1
    tables.num_scope[factor] = num_found
    tables.first[factor] = first
    tables.is_edge[factor] = 0
    for k in range(num_found):
        tables.scope[factor, k] = found[k]
    list_factor(tables, factor)


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
        num_found = scope_without(tables, factor, node, scope)
        size = entries_over(graph, scope, num_found)
        for z in range(size):
            tables.sums[z] = 0.0
        data = edge_tables if tables.is_edge[factor] == 1 else tables.entries
        add_factor(
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


@compiled
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
    for k in range(len(tables.counts)):
        tables.counts[k] = 0
    for k in range(NUM_BUCKETS):
        tables.bucket[k] = -1
    tables.used[0] = 0
    found, others, strides, places = (
        tables.lists[0],
        tables.lists[1],
        tables.lists[2],
        tables.lists[3],
    )
    for at in range(size):
        tables.head[tables.nodes[at]] = -1
    for at in range(size):
        _open_node(graph, costs, edge_tables, tables, walk, tables.nodes[at], temperature)
    lowest = queue_all(graph, tables, tables.nodes, size, most_entries, found, NUM_BUCKETS)
    num_held = 0
    while True:
        while lowest < NUM_BUCKETS and tables.bucket[lowest] < 0:
            lowest += 1
        if lowest == NUM_BUCKETS:
            node = most_joined(tables, walk.random, size)
            if node < 0:
                break
            num_held += 1
            num_others = joined_nodes(tables, node)
            _hold(graph, edge_tables, tables, node, walk.choices[node], strides, places, found)
            lowest = queue_all(
                graph, tables, tables.waiting, num_others, most_entries, found, lowest
            )
            continue
        node, num_found = next_node(graph, tables, lowest, most_entries, found)
        if node < 0:
            continue
        if is_full(tables, most_entries):
            num_held += 1
            _hold(graph, edge_tables, tables, node, walk.choices[node], strides, places, others)
            continue
        _eliminate(graph, edge_tables, tables, node, found, num_found, strides, places)
        for k in range(num_found):
            others[k] = found[k]
        lowest = queue_all(graph, tables, others, num_found, most_entries, found, lowest)
    _read_back(graph, edge_tables, tables, walk)
    return num_held


@compiled_part
def _read_back(graph: FlatGraph, edge_tables: FloatArray, tables: Tables, walk: Walk) -> None:
    """Picks the choices of eliminated nodes, last eliminated first."""
    for at in range(tables.counts[ELIMINATED] - 1, -1, -1):
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
