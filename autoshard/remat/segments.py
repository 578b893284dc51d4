"""Where a forward pass without loops falls into segments that are computed again one by one."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise


def cut_into_segments(made: Sequence[int], alive: Sequence[int]) -> tuple[int, ...]:
    """The segment of every equation, so that checkpointing takes the fewest bytes.

    What lives across the borders of segments is kept for the backward pass; what is made inside one
    is there when that is computed again. The sum of all kept and of the largest inside is least.

    Args:
        made: Bytes that each equation makes.
        alive: By equation, bytes made before it that it or later ones read.

    Source: Chen, Xu, Zhang and Guestrin (2016), "Training Deep Nets with Sublinear Memory Cost",
    with the borders at the places where least is alive.
    """
    total = sum(made)
    best: tuple[int, tuple[int, ...]] = (total, (0,))
    limit = total
    while limit >= max(made, default=0) and limit > 0:
        starts = _starts_within(made, alive, limit)
        bounds = [*starts, len(made)]
        inside = max(sum(made[i:j]) for i, j in pairwise(bounds))
        held = inside + sum(alive[start] for start in starts[1:])
        best = min(best, (held, tuple(starts)))
        limit = min(limit - 1, inside - 1, limit * 3 // 4)
    first = set(best[1])
    found, segment = [], -1
    for position in range(len(made)):
        segment += position in first
        found.append(segment)
    return tuple(found)


def _starts_within(made: Sequence[int], alive: Sequence[int], limit: int) -> list[int]:
    """First equations of segments that make no more than a limit each, with least kept between."""
    least = [0] * (len(made) + 1)  # by equation: kept before it, if a segment ends there
    before = [0] * (len(made) + 1)
    open_starts: deque[int] = deque()
    inside, first = 0, 0
    for stop in range(1, len(made) + 1):
        start = stop - 1
        price = least[start] + (alive[start] if start else 0)
        while open_starts and _price(open_starts[-1], least, alive) >= price:
            open_starts.pop()
        open_starts.append(start)
        inside += made[start]
        while inside > limit:
            inside -= made[first]
            first += 1
        while open_starts[0] < first:
            open_starts.popleft()
        before[stop] = open_starts[0]
        least[stop] = _price(open_starts[0], least, alive)
    starts: list[int] = []
    stop = len(made)
    while stop > 0:
        stop = before[stop]
        starts.append(stop)
    return starts[::-1]


def _price(start: int, least: Sequence[int], alive: Sequence[int]) -> int:
    return least[start] + (alive[start] if start else 0)
