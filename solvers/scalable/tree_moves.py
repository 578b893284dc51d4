"""Moves of random trees: the best choices of up to dozens of nodes at once, given all others.

A tree is induced: among its nodes there are no edges but its own, so that dynamic programming over
it is exact. Noise on the costs makes the moves a random walk that cools down; a move that would put
memory above the limit (or, where it is above already, further up) is taken back.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from solvers.kernels import FlatGraph, FloatArray, compiled, compiled_part
from solvers.problem import IntArray
from solvers.scalable.layout import FlatMemory, Layout
from solvers.scalable.profile import Profile, add_to_profile, peak_of, profile_of

NUM_NOISES = 2**14

UIntArray = npt.NDArray[np.uint64]


class Walk(NamedTuple):
    """Where a walk stands; the moves write into it.

    Args:
        choices: int64[nodes].
        profile: What they hold.
        best: int64[nodes]: the cheapest choices passed that fit.
        costs: float64[2]: of `choices`, and of `best` (infinite before any fit).
        counts: int64[4]: moves tried, moves that changed something, moves taken back, peak.
        random: uint64[1]: state of the random numbers.
        noises: float64[NUM_NOISES]: draws from the Gumbel distribution.
    """

    choices: IntArray
    profile: Profile
    best: IntArray
    costs: FloatArray
    counts: IntArray
    random: UIntArray
    noises: FloatArray


class Room(NamedTuple):
    """Scratch the moves need, kept between calls.

    Args:
        place: int64[nodes]: place in the tree, -1 outside it.
        touching: int64[nodes]: edges to nodes of the tree.
        up: int64[nodes]: half-edge towards the tree.
        border: int64[nodes]: nodes that may join.
        tree: int64[most nodes of a tree], parents first.
        first: int64[most nodes of a tree + 1]: first entry of each in `values`.
        values: float64[entries].
        work: float64[most choices].
        before: int64[most nodes of a tree].
        after: int64[most nodes of a tree].
    """

    place: IntArray
    touching: IntArray
    up: IntArray
    border: IntArray
    tree: IntArray
    first: IntArray
    values: FloatArray
    work: FloatArray
    before: IntArray
    after: IntArray


def make_room(layout: Layout, most_nodes: int) -> Room:
    """Allocates scratch for trees of up to `most_nodes`."""
    num_nodes = layout.problem.num_nodes
    most_choices = int(layout.num_choices.max(initial=1))
    return Room(
        place=np.full(num_nodes, -1, dtype=np.int64),
        touching=np.zeros(num_nodes, dtype=np.int64),
        up=np.full(num_nodes, -1, dtype=np.int64),
        border=np.zeros(len(layout.graph.half_far) + num_nodes + 1, dtype=np.int64),
        tree=np.zeros(most_nodes, dtype=np.int64),
        first=np.zeros(most_nodes + 1, dtype=np.int64),
        values=np.zeros(most_nodes * most_choices),
        work=np.zeros(most_choices),
        before=np.zeros(most_nodes, dtype=np.int64),
        after=np.zeros(most_nodes, dtype=np.int64),
    )


@functools.cache
def _gumbel_noises() -> FloatArray:
    return np.random.default_rng(0).gumbel(size=NUM_NOISES)


def start_walk(layout: Layout, choices: IntArray, seed: int) -> Walk:
    """Starts a walk at given choices."""
    taken = np.array(choices, dtype=np.int64)
    profile = profile_of(layout.memory, layout.num_choices, taken)
    cost = cost_of_walk(layout.graph, taken)
    peak = int(peak_of(profile))
    return Walk(
        choices=taken,
        profile=profile,
        best=taken.copy(),
        costs=np.array([cost, cost if peak <= layout.memory.limit else np.inf]),
        counts=np.array([0, 0, 0, peak], dtype=np.int64),
        random=np.random.default_rng(seed).integers(1, 2**63, 1).astype(np.uint64),
        noises=_gumbel_noises(),
    )


def copy_walk(source: Walk, target: Walk) -> None:
    """Takes over where another walk stands, but for its random numbers."""
    target.choices[:] = source.choices
    target.profile.held[:] = source.profile.held
    target.profile.added[:] = source.profile.added
    target.profile.most[:] = source.profile.most
    target.costs[:] = source.costs
    target.counts[3] = source.counts[3]


@compiled
def cost_of_walk(graph: FlatGraph, choices: IntArray) -> float:
    """Adds up what choices cost."""
    cost = 0.0
    for node in range(len(choices)):
        num_choices = graph.node_start[node + 1] - graph.node_start[node]
        cost += graph.costs[graph.node_start[node] + choices[node]]
        for half in range(graph.half_start[node], graph.half_start[node + 1]):
            far = graph.half_far[half]
            if far < node:
                at = graph.half_table[half] + choices[far] * num_choices + choices[node]
                cost += graph.tables[at]
    return cost


@compiled_part
def draw(random: UIntArray) -> int:
    """Returns the next random number, 0 up to ``2**31`` (xorshift, Marsaglia 2003)."""
    state = random[0]
    state ^= state << np.uint64(13)
    state ^= state >> np.uint64(7)
    state ^= state << np.uint64(17)
    random[0] = state
    return int(state >> np.uint64(33))


@compiled_part
def _join(graph: FlatGraph, room: Room, node: int, size: int, waiting: int) -> int:
    """Puts a node into the tree; returns how many wait at its border then."""
    room.tree[size] = node
    room.place[node] = size
    num_choices = graph.node_start[node + 1] - graph.node_start[node]
    room.first[size + 1] = room.first[size] + num_choices
    for half in range(graph.half_start[node], graph.half_start[node + 1]):
        far = graph.half_far[half]
        room.touching[far] += 1
        if room.touching[far] == 1 and room.place[far] < 0:
            room.up[far] = graph.half_twin[half]
            room.border[waiting] = far
            waiting += 1
    return waiting


@compiled_part
def _grow(
    graph: FlatGraph, room: Room, random: UIntArray, root: int, most_nodes: int, most_work: int
) -> int:
    """Grows a random induced tree from a root; returns its number of nodes."""
    room.first[0] = 0
    room.up[root] = -1
    waiting = _join(graph, room, root, 0, 0)
    size = 1
    work = 0
    while size < most_nodes and waiting > 0:
        at = draw(random) % waiting
        node = room.border[at]
        waiting -= 1
        room.border[at] = room.border[waiting]
        if room.touching[node] != 1 or room.place[node] >= 0:
            continue
        far = graph.half_far[room.up[node]]
        num_choices = graph.node_start[node + 1] - graph.node_start[node]
        entries = num_choices * (graph.node_start[far + 1] - graph.node_start[far])
        degree = graph.half_start[node + 1] - graph.half_start[node]
        if work + entries > most_work:
            continue
        if degree > 64 and draw(random) % degree >= 64:
            continue  # hubs would be in every tree
        work += entries
        waiting = _join(graph, room, node, size, waiting)
        size += 1
    return size


@compiled_part
def _leave(graph: FlatGraph, room: Room, size: int) -> None:
    for at in range(size):
        node = room.tree[at]
        room.place[node] = -1
        for half in range(graph.half_start[node], graph.half_start[node + 1]):
            room.touching[graph.half_far[half]] = 0


@compiled_part
def _pay_outside(
    graph: FlatGraph, costs: FloatArray, tables: FloatArray, room: Room, walk: Walk, at: int
) -> None:
    """Sets a tree node's values to what its choices cost with everything outside the tree."""
    node = room.tree[at]
    start = graph.node_start[node]
    num_choices = graph.node_start[node + 1] - start
    own = room.values[room.first[at] : room.first[at + 1]]
    for y in range(num_choices):
        own[y] = costs[start + y]
    for half in range(graph.half_start[node], graph.half_start[node + 1]):
        far = graph.half_far[half]
        if room.place[far] < 0:
            row = graph.half_table[half] + walk.choices[far] * num_choices
            added = tables[row : row + num_choices]
            for y in range(num_choices):
                own[y] += added[y]


@compiled_part
def _add_noise(values: FloatArray, walk: Walk, temperature: float) -> None:
    at_noise = draw(walk.random) % (NUM_NOISES - len(values))
    noises = walk.noises[at_noise : at_noise + len(values)]
    for y in range(len(values)):
        values[y] -= temperature * noises[y]


@compiled_part
def _send_up(graph: FlatGraph, tables: FloatArray, room: Room, at: int) -> None:
    """Adds to a tree node's parent the least its subtree costs for each of the parent's choices."""
    half = room.up[room.tree[at]]
    above = room.place[graph.half_far[half]]
    own = room.values[room.first[at] : room.first[at + 1]]
    parent = room.values[room.first[above] : room.first[above + 1]]
    least = room.work[: len(parent)]
    first = graph.half_table[graph.half_twin[half]]
    for z in range(len(parent)):
        least[z] = np.inf
    for y in range(len(own)):
        paid = own[y]
        row = tables[first + y * len(parent) : first + (y + 1) * len(parent)]
        for z in range(len(parent)):
            least[z] = min(least[z], row[z] + paid)
    for z in range(len(parent)):
        parent[z] += least[z]


@compiled_part
def _solve(
    graph: FlatGraph,
    costs: FloatArray,
    tables: FloatArray,
    room: Room,
    walk: Walk,
    size: int,
    temperature: float,
) -> None:
    """Sets ``room.after`` to the tree's best choices at noisy costs."""
    for at in range(size):
        _pay_outside(graph, costs, tables, room, walk, at)
        if temperature > 0:
            own = room.values[room.first[at] : room.first[at + 1]]
            _add_noise(own, walk, temperature)
    for at in range(size - 1, 0, -1):
        _send_up(graph, tables, room, at)
    for at in range(size):
        own = room.values[room.first[at] : room.first[at + 1]]
        if at > 0:
            half = room.up[room.tree[at]]
            above = room.place[graph.half_far[half]]
            first = graph.half_table[half] + room.after[above] * len(own)
            for y in range(len(own)):
                own[y] += tables[first + y]
        best = walk.choices[room.tree[at]]
        for y in range(len(own)):
            if own[y] < own[best]:
                best = y
        room.after[at] = best


@compiled_part
def set_choice(graph: FlatGraph, memory: FlatMemory, walk: Walk, node: int, choice: int) -> float:
    """Gives a node a choice and brings the profile up to date; returns what it adds to the cost."""
    before = walk.choices[node]
    added = 0.0
    start = graph.node_start[node]
    num_choices = graph.node_start[node + 1] - start
    added += float(graph.costs[start + choice] - graph.costs[start + before])
    for half in range(graph.half_start[node], graph.half_start[node + 1]):
        row = graph.half_table[half] + walk.choices[graph.half_far[half]] * num_choices
        added += float(graph.tables[row + choice] - graph.tables[row + before])
    for term in range(memory.term_start[node], memory.term_start[node + 1]):
        at = memory.usage_start[term]
        if memory.far[term] >= 0:
            at += walk.choices[memory.far[term]] * num_choices
        change = memory.usages[at + choice] - memory.usages[at + before]
        if change != 0:
            add_to_profile(walk.profile, memory.first_row[term], memory.stop_row[term], change)
    walk.choices[node] = choice
    return added


@compiled_part
def keep_as_best(walk: Walk) -> None:
    """Copies where a walk stands to its best."""
    walk.costs[1] = walk.costs[0]
    for node in range(len(walk.choices)):
        walk.best[node] = walk.choices[node]


@compiled
def move_trees(
    graph: FlatGraph,
    memory: FlatMemory,
    costs: FloatArray,
    tables: FloatArray,
    walk: Walk,
    room: Room,
    roots: IntArray,
    num_moves: int,
    temperature: float,
    most_nodes: int,
    most_work: int,
) -> None:
    """Makes moves from random roots.

    Args:
        graph: What is paid.
        memory: What is held.
        costs: float64[choices]: what the moves minimise at nodes (prices for memory included).
        tables: float64[entries]: what they minimise at edges, laid out like ``graph.tables``.
        walk: Updated.
        room: Scratch.
        roots: int64[roots]: trees grow from these.
        num_moves: How many.
        temperature: Size of the noise.
        most_nodes: Of a tree.
        most_work: Table entries of a tree.
    """
    for _ in range(num_moves):
        root = roots[draw(walk.random) % len(roots)]
        wanted = 1 + draw(walk.random) % most_nodes
        size = _grow(graph, room, walk.random, root, wanted, most_work)
        _solve(graph, costs, tables, room, walk, size, temperature)
        added = 0.0
        num_changed = 0
        for at in range(size):
            node = room.tree[at]
            room.before[at] = walk.choices[node]
            if room.after[at] != room.before[at]:
                num_changed += 1
                added += set_choice(graph, memory, walk, node, room.after[at])
        _leave(graph, room, size)
        walk.counts[0] += 1
        if num_changed == 0:
            continue
        peak = peak_of(walk.profile)
        if peak > memory.limit and peak > walk.counts[3]:
            for at in range(size - 1, -1, -1):
                if room.before[at] != room.after[at]:
                    set_choice(graph, memory, walk, room.tree[at], room.before[at])
            walk.counts[2] += 1
            continue
        walk.counts[1] += 1
        walk.counts[3] = peak
        walk.costs[0] += added
        if peak <= memory.limit and walk.costs[0] < walk.costs[1]:
            keep_as_best(walk)
