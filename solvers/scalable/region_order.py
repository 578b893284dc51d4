"""Which node of a region goes next: the one whose elimination takes the smallest table.

Open nodes wait in buckets by the size of that table. Sizes change as elimination goes on; a node is
filed anew then, and what it left behind in other buckets no longer counts.
"""

from __future__ import annotations

import numpy as np

from solvers.kernels import FlatGraph, compiled_part
from solvers.problem import IntArray
from solvers.scalable.region_factors import LINKS, NUM_BUCKETS, Tables, neighbours
from solvers.scalable.tree_moves import UIntArray, draw


@compiled_part
def key_of(graph: FlatGraph, node: int, found: IntArray, num_found: int) -> int:
    """Returns the bucket for the table that eliminating a node takes."""
    size = float(graph.node_start[node + 1] - graph.node_start[node])
    for k in range(num_found):
        size *= graph.node_start[found[k] + 1] - graph.node_start[found[k]]
    return min(NUM_BUCKETS - 1, int(2.0 * np.log2(size)))


@compiled_part
def file_node(tables: Tables, node: int, key: int) -> None:
    """Puts a node into a bucket; what it left behind elsewhere no longer counts."""
    link = tables.counts[LINKS]
    if tables.key[node] == key or link == len(tables.links):
        return
    tables.counts[LINKS] += 1
    tables.key[node] = key
    tables.links[link, 0] = node
    tables.links[link, 1] = tables.bucket[key]
    tables.bucket[key] = link


@compiled_part
def queue_node(
    graph: FlatGraph, tables: Tables, node: int, most_entries: int, found: IntArray
) -> int:
    """Files an open node by what its elimination takes; returns its bucket, -1 for too much."""
    num_found = neighbours(graph, tables, node, most_entries, found)
    if num_found < 0:
        tables.key[node] = -1
        return -1
    key = key_of(graph, node, found, num_found)
    file_node(tables, node, key)
    return key


@compiled_part
def queue_all(
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
        key = queue_node(graph, tables, nodes[k], most_entries, found)
        if key >= 0:
            lowest = min(lowest, key)
    return lowest


@compiled_part
def next_node(
    graph: FlatGraph, tables: Tables, lowest: int, most_entries: int, found: IntArray
) -> tuple[int, int]:
    """Takes a node out of a bucket; -1 where it no longer belongs there and was filed anew."""
    link = tables.bucket[lowest]
    node = tables.links[link, 0]
    tables.bucket[lowest] = tables.links[link, 1]
    if tables.status[node] != 0 or tables.key[node] != lowest:
        return -1, 0
    tables.key[node] = -1
    num_found = neighbours(graph, tables, node, most_entries, found)
    if num_found < 0:
        return -1, 0
    key = key_of(graph, node, found, num_found)
    if key > lowest:
        file_node(tables, node, key)
        return -1, 0
    return node, num_found


@compiled_part
def most_joined(tables: Tables, random: UIntArray, size: int) -> int:
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
