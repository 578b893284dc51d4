"""Closed forms against a simulation that moves every piece over every link, one step at a time."""

from __future__ import annotations

import itertools
from collections import deque

import pytest

from cost_models import LinkDim, all_gather_cost, all_to_all_cost, group_dims
from cost_models.links import AxisLink, DimPart, LinkKind

Place = tuple[int, ...]
Way = tuple[Place, Place]
Grid = tuple[tuple[LinkKind, int], ...]


def group_cost_per_byte(grid: Grid, collective: str) -> float:
    """By the formula, for links of one byte a second."""
    parts = tuple(
        DimPart(LinkDim(index, kind, size, 1.0, 0.0), 1, size)
        for index, (kind, size) in enumerate(grid)
    )
    size = 1
    for part in parts:
        size *= part.size
    group = group_dims([(AxisLink(size, parts), 1, size)])
    cost = all_gather_cost if collective == "gather" else all_to_all_cost
    return cost(group).seconds_per_byte


def places_of(grid: Grid) -> list[Place]:
    return list(itertools.product(*(range(size) for _, size in grid)))


def arms(grid: Grid, dim: int, place: Place, turn: int) -> list[list[Place]]:
    """The ways from a place along one dimension: the places up and down it, nearest first.

    A ring of even size has a farthest place that both ways reach; they take turns.
    """
    kind, size = grid[dim]

    def at(position: int) -> Place:
        return (*place[:dim], position % size, *place[dim + 1 :])

    here = place[dim]
    if kind == "line":
        return [
            [at(position) for position in range(here + 1, size)],
            [at(position) for position in range(here - 1, -1, -1)],
        ]
    up = (size - 1 + turn % 2) // 2
    return [
        [at(here + hop) for hop in range(1, up + 1)],
        [at(here - hop) for hop in range(1, size - up)],
    ]


def broadcast_tree(grid: Grid, root: Place, order: tuple[int, ...], turn: int) -> list[Way]:
    """The hops by which one piece reaches every device, dimension by dimension."""
    hops: list[Way] = []
    reached = [root]
    for dim in order:
        for start in list(reached):
            for arm in arms(grid, dim, start, turn):
                for before, after in itertools.pairwise([start, *arm]):
                    hops.append((before, after))
                    reached.append(after)
    return hops


def gather_steps(grid: Grid, num_pieces: int, weights: dict[tuple[int, ...], float]) -> int:
    """Steps until every piece of every shard is everywhere; a link moves one piece a step.

    The pieces of a shard are divided among orders of the dimensions. A device hands a piece on in
    the step after it came; what waits for a link waits in line.
    """
    waiting: dict[Way, deque[tuple[Place, int]]] = {}
    onward: dict[tuple[Place, int], dict[Place, list[Place]]] = {}
    orders: list[tuple[int, ...]] = []
    shares = dict.fromkeys(weights, 0.0)
    for _ in range(num_pieces):
        order = min(weights, key=lambda o: (shares[o] + 1) / weights[o] if weights[o] else 1e9)
        shares[order] += 1
        orders.append(order)
    for piece, order in enumerate(orders):
        for root in places_of(grid):
            children: dict[Place, list[Place]] = {}
            for before, after in broadcast_tree(grid, root, order, piece + sum(root)):
                children.setdefault(before, []).append(after)
            onward[root, piece] = children
            for after in children.get(root, []):
                waiting.setdefault((root, after), deque()).append((root, piece))
    steps = 0
    while any(waiting.values()):
        steps += 1
        moved = [(way, queue.popleft()) for way, queue in waiting.items() if queue]
        for (_, after), parcel in moved:
            for further in onward[parcel].get(after, []):
                waiting.setdefault((after, further), deque()).append(parcel)
    return steps


@pytest.mark.parametrize(
    ("grid", "weights", "slack"),
    [
        ((("ring", 4),), {(0,): 1.0}, 1.08),
        ((("ring", 5),), {(0,): 1.0}, 1.01),
        ((("ring", 8),), {(0,): 1.0}, 1.08),
        ((("line", 2),), {(0,): 1.0}, 1.0),
        ((("line", 6),), {(0,): 1.0}, 1.08),
        ((("ring", 4), ("ring", 4)), {(0, 1): 0.5, (1, 0): 0.5}, 1.08),
        ((("line", 2), ("line", 2)), {(0, 1): 0.5, (1, 0): 0.5}, 1.08),
        ((("line", 4), ("line", 4)), {(0, 1): 0.5, (1, 0): 0.5}, 1.1),
        # The long dimension has more to bring, so more pieces take the short one first.
        ((("line", 2), ("line", 4)), {(0, 1): 0.3, (1, 0): 0.7}, 1.25),
        (
            (("ring", 3), ("ring", 3), ("ring", 3)),
            dict.fromkeys(((0, 1, 2), (1, 2, 0), (2, 0, 1)), 1 / 3),
            1.08,
        ),
    ],
)
def test_a_schedule_reaches_the_all_gather_of_the_formula_and_none_beats_it(
    grid: Grid, weights: dict[tuple[int, ...], float], slack: float
) -> None:
    num_pieces = 24
    size = len(places_of(grid))
    steps = gather_steps(grid, num_pieces, weights)
    simulated = steps / (size * num_pieces)  # seconds per gathered byte at one byte a second
    formula = group_cost_per_byte(grid, "gather")
    assert formula * (1 - 1e-9) <= simulated <= formula * slack


def shortest_way(grid: Grid, source: Place, target: Place, turn: int) -> list[Way]:
    hops: list[Way] = []
    place = source
    for dim, (kind, size) in enumerate(grid):
        ahead = target[dim] - place[dim]
        step = 1 if ahead > 0 else -1
        if kind == "ring":
            up = ahead % size
            step = 1 if 2 * up < size or (2 * up == size and turn % 2) else -1
        while place[dim] != target[dim]:
            after = (*place[:dim], (place[dim] + step) % size, *place[dim + 1 :])
            hops.append((place, after))
            place = after
    return hops


def exchange_steps(grid: Grid, num_pieces: int) -> int:
    """Steps until every device has sent its pieces to every other one, a piece a link a step."""
    waiting: dict[Way, deque[list[Way]]] = {}
    places = places_of(grid)
    for piece in range(num_pieces):
        for shift in range(1, len(places)):
            for index, source in enumerate(places):
                target = places[(index + shift) % len(places)]
                hops = shortest_way(grid, source, target, piece)
                waiting.setdefault(hops[0], deque()).append(hops)
    steps = 0
    while any(waiting.values()):
        steps += 1
        moved = [queue.popleft() for queue in waiting.values() if queue]
        for hops in moved:
            if len(hops) > 1:
                waiting.setdefault(hops[1], deque()).append(hops[1:])
    return steps


@pytest.mark.parametrize(
    "grid",
    [
        (("ring", 4),),
        (("ring", 5),),
        (("ring", 8),),
        (("line", 4),),
        (("line", 5),),
        (("ring", 4), ("ring", 4)),
        (("line", 2), ("line", 4)),
        (("ring", 8), ("line", 2)),
    ],
    ids=str,
)
def test_an_all_to_all_takes_what_its_busiest_link_carries(grid: Grid) -> None:
    num_pieces = 8
    size = len(places_of(grid))
    simulated = exchange_steps(grid, num_pieces) / (size * num_pieces)
    formula = group_cost_per_byte(grid, "exchange")
    assert formula * (1 - 1e-9) <= simulated <= formula * 1.35
