"""Moves of whole regions: hundreds of nodes set to their best choices at once, given the rest.

What a region's solution changes falls into parts that share no edge; each part is taken over if
memory allows. A region may be the whole problem.
"""

from __future__ import annotations

from solvers.kernels import FlatGraph, FloatArray, compiled
from solvers.problem import IntArray
from solvers.scalable.layout import FlatMemory
from solvers.scalable.profile import peak_of
from solvers.scalable.region_elimination import solve_region
from solvers.scalable.region_factors import Tables
from solvers.scalable.tree_moves import UIntArray, Walk, draw, keep_as_best, set_choice

_HUB = 64  # edges from which a node does not let a region grow through it


@compiled
def grow_region(
    graph: FlatGraph, tables: Tables, random: UIntArray, roots: IntArray, most_nodes: int
) -> int:
    """Collects nodes around one of some roots in random order; returns how many."""
    root = roots[draw(random) % len(roots)]
    size = 0
    num_waiting = 1
    tables.waiting[0] = root
    tables.place[root] = -2  # waits
    while num_waiting > 0 and size < most_nodes:
        at = draw(random) % num_waiting
        node = tables.waiting[at]
        num_waiting -= 1
        tables.waiting[at] = tables.waiting[num_waiting]
        degree = graph.half_start[node + 1] - graph.half_start[node]
        tables.place[node] = size
        tables.nodes[size] = node
        size += 1
        if degree > _HUB and node != root:
            continue
        for half in range(graph.half_start[node], graph.half_start[node + 1]):
            far = graph.half_far[half]
            if tables.place[far] == -1:
                tables.place[far] = -2
                tables.waiting[num_waiting] = far
                num_waiting += 1
    for at in range(num_waiting):
        tables.place[tables.waiting[at]] = -1
    return size


@compiled
def _take_parts(graph: FlatGraph, memory: FlatMemory, tables: Tables, walk: Walk, size: int) -> int:
    """Takes over, part by part, what a region's solution changes, as far as it fits.

    Parts share no edge, so each stands for itself. Returns how many nodes changed.
    """
    num_changed = 0
    for at in range(size):
        root = tables.nodes[at]
        if tables.after[root] == walk.choices[root]:
            continue
        # ``waiting`` holds the part, and behind it (from the end) the choices before.
        tables.waiting[0] = root
        tables.stamp[root] = -1
        num_part = 1
        done = 0
        while done < num_part:
            node = tables.waiting[done]
            done += 1
            for half in range(graph.half_start[node], graph.half_start[node + 1]):
                far = graph.half_far[half]
                if (
                    tables.place[far] >= 0
                    and tables.stamp[far] != -1
                    and tables.after[far] != walk.choices[far]
                ):
                    tables.stamp[far] = -1
                    tables.waiting[num_part] = far
                    num_part += 1
        added = 0.0
        for k in range(num_part):
            node = tables.waiting[k]
            tables.order[k] = walk.choices[node]
            added += set_choice(graph, memory, walk, node, tables.after[node])
        peak = peak_of(walk.profile)
        if peak > memory.limit and peak > walk.counts[3]:
            for k in range(num_part - 1, -1, -1):
                node = tables.waiting[k]
                tables.after[node] = tables.order[k]
                set_choice(graph, memory, walk, node, tables.order[k])
            walk.counts[2] += 1
            continue
        num_changed += num_part
        walk.counts[1] += 1
        walk.counts[3] = peak
        walk.costs[0] += added
        if peak <= memory.limit and walk.costs[0] < walk.costs[1]:
            keep_as_best(walk)
    return num_changed


def move_regions(
    graph: FlatGraph,
    memory: FlatMemory,
    costs: FloatArray,
    edge_tables: FloatArray,
    walk: Walk,
    tables: Tables,
    roots: IntArray,
    num_moves: int,
    temperature: float,
    most_nodes: int,
    most_entries: int,
) -> int:
    """Solves regions around random roots and takes what fits; returns how many nodes were held.

    Args:
        graph: What is paid.
        memory: What is held.
        costs: float64[choices]: what the moves minimise at nodes (prices for memory included).
        edge_tables: float64[entries]: what they minimise at edges.
        walk: Updated.
        tables: Scratch.
        roots: int64[roots]: regions grow from these.
        num_moves: How many.
        temperature: Of the noise.
        most_nodes: Of a region.
        most_entries: Of a table.
    """
    num_held = 0
    for _ in range(num_moves):
        size = grow_region(graph, tables, walk.random, roots, most_nodes)
        num_held += solve_region(
            graph, costs, edge_tables, tables, walk, size, most_entries, temperature
        )
        walk.counts[0] += 1
        _take_parts(graph, memory, tables, walk, size)
        tables.place[tables.nodes[:size]] = -1
    return num_held
