"""The order of kernels that holds little memory, as XLA's memory scheduler finds it.

Three orders of all bodies are tried, and that is taken in which the program holds the least: a
greedy one that frees the most bytes next, and two depth-first ones.

Source: XLA's `DefaultMemoryScheduler` (`hlo_memory_scheduler.cc`).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from itertools import accumulate
from math import inf
from typing import NamedTuple


class Work(NamedTuple):
    """A kernel, the start or the end of a collective, or a loop, which a compiler puts in order.

    Args:
        needs: Places of earlier work that it reads, each once.
        num_bytes: Of the buffer that it makes.
        is_kept: Its buffer is there until the body ends.
        microseconds: As the compiler estimates it, not as long as it takes.
        latency: Of the start of a collective, microseconds until its end may run.
        start: Of the end of a collective, the place of its start; else -1.
        is_free: It takes no time, and runs right before the first that needs it.
        joins: The place of the work in whose kernel it runs; -1: in its own.
        is_in_place: It writes to the buffer of a donated argument.
        called_bytes: By order, the most that is live in the body that it runs.
    """

    needs: tuple[int, ...] = ()
    num_bytes: int = 0
    is_kept: bool = False
    microseconds: float = 0.0
    latency: float = 0.0
    start: int = -1
    is_free: bool = False
    joins: int = -1
    is_in_place: bool = False
    called_bytes: tuple[int, ...] = ()


class MemoryOrders(NamedTuple):
    """The orders of a body of which the compiler takes one for all bodies.

    Args:
        places: Per order, the places of its works: greedy, depth first, as written.
        held: Per order, the most bytes that are live at one time, those of called bodies included.
    """

    places: tuple[list[int], ...]
    held: tuple[int, ...]

    @property
    def best(self) -> int:
        """The order that holds the least, of equal ones the first."""
        return self.held.index(min(self.held))


def users_of(needs: Sequence[Sequence[int]]) -> list[list[int]]:
    """Per place, those that need it, in order.

    Args:
        needs: Per place, those that it needs.
    """
    users: list[list[int]] = [[] for _ in needs]
    for place, needed in enumerate(needs):
        for need in needed:
            users[need].append(place)
    return users


def memory_orders(works: Sequence[Work], ends: Sequence[int] = ()) -> MemoryOrders:
    """The orders of a body.

    Args:
        works: In an order in which they could run.
        ends: Places of those that make results, in the order of these.
    """
    users = users_of([one.needs for one in works])
    last = (place for place, one in enumerate(users) if not one)
    roots = tuple(dict.fromkeys((*ends, *last)))
    written = _visited(works, roots, None)
    orders = (_by_bytes_freed(works, users), _depth_first(works, users, roots, written), written)
    places = tuple(_with_joined(works, order) for order in orders)
    held = (_most_live(works, users, order, which) for which, order in enumerate(places))
    return MemoryOrders(places, tuple(held))


def _with_joined(works: Sequence[Work], order: Sequence[int]) -> list[int]:
    """The same order, all that runs in one kernel at once."""
    joined: dict[int, list[int]] = {}
    for place in order:
        joined.setdefault(works[place].joins, []).append(place)
    return [one for place in joined.get(-1, ()) for one in (place, *joined.get(place, ()))]


def _most_live(
    works: Sequence[Work], users: Sequence[Sequence[int]], order: Sequence[int], which: int
) -> int:
    """The most bytes that are there at one time, called bodies in their order `which`."""
    turn = [0] * len(works)
    for number, place in enumerate(order):
        turn[place] = number
    change = [0] * (len(works) + 1)
    for place, one in enumerate(works):
        if one.called_bytes:
            change[turn[place]] += one.called_bytes[which]
            change[turn[place] + 1] -= one.called_bytes[which]
        if one.is_in_place:
            continue
        change[turn[place]] += one.num_bytes
        if not one.is_kept:
            last = max((turn[user] for user in users[place]), default=turn[place])
            change[last + 1] -= one.num_bytes
    return max(accumulate(change), default=0)


def _by_bytes_freed(works: Sequence[Work], users: Sequence[Sequence[int]]) -> list[int]:
    """The most bytes freed come next, of equal ones more users, then the latest that is ready."""
    reads_left = [len(users[place]) + one.is_kept for place, one in enumerate(works)]
    waits_for = [len(one.needs) for one in works]
    made = _made_by_kernels(works)
    ready: list[tuple[float, int, int, int]] = []
    entries: dict[int, tuple[float, int, int, int]] = {}
    order: list[int] = []
    count = 0

    def add(place: int) -> None:
        nonlocal count
        one = works[place]
        freed = sum(works[need].num_bytes for need in one.needs if reads_left[need] == 1)
        count += 1
        gain = freed - made[place] if one.joins < 0 else inf
        entry = gain, len(users[place]), count, place
        known = entries.get(place)
        if known is not None:
            if known[:2] == entry[:2]:
                return
            del ready[bisect_left(ready, known)]
        entries[place] = entry
        insort(ready, entry)

    for place, waits in enumerate(waits_for):
        if not waits:
            add(place)
    while ready:
        place = ready.pop()[3]
        del entries[place]
        order.append(place)
        freeing = []
        for need in works[place].needs:
            reads_left[need] -= 1
            if reads_left[need] == 1:
                freeing.append(need)
        for user in users[place]:
            waits_for[user] -= 1
            if not waits_for[user]:
                add(user)
        for need in freeing:
            for user in users[need]:
                if user in entries:
                    add(user)
    return order


def _made_by_kernels(works: Sequence[Work]) -> list[int]:
    """Per work, bytes that it makes and all that runs in its kernel."""
    made = [one.num_bytes for one in works]
    for one in works:
        if one.joins >= 0:
            made[one.joins] += one.num_bytes
    return made


def _depth_first(
    works: Sequence[Work],
    users: Sequence[Sequence[int]],
    roots: Sequence[int],
    written: Sequence[int],
) -> list[int]:
    """Depth first, what has more users behind it before what has fewer, then the larger.

    Users and bytes are summed up in the order in which all is written.
    """
    more_users = [0] * len(works)
    num_bytes = [0] * len(works)
    total = 0
    for place in written:
        one = works[place]
        total += one.num_bytes
        more_users[place] = max(len(users[place]) - 1, 0) + sum(more_users[n] for n in one.needs)
        more_users[place] = min(more_users[place], len(works))
        num_bytes[place] = min(one.num_bytes + sum(num_bytes[n] for n in one.needs), total)
    return _visited(works, roots, lambda place: (-more_users[place], -num_bytes[place], place))


def _visited(
    works: Sequence[Work],
    roots: Sequence[int],
    key: Callable[[int], tuple[int, ...]] | None,
) -> list[int]:
    """Everything after what it needs, depth first from the results: without a key as written."""
    order: list[int] = []
    seen = [False] * len(works)

    def in_order(places: Sequence[int]) -> Sequence[int]:
        return places if key is None else sorted(places, key=key)

    def needs(place: int) -> list[int]:
        return list(reversed(in_order(works[place].needs)))

    for root in in_order(roots):
        stack = [(root, needs(root))]
        while stack:
            place, left = stack[-1]
            while left and seen[left[-1]]:
                left.pop()
            if left:
                following = left.pop()
                stack.append((following, needs(following)))
                continue
            stack.pop()
            if not seen[place]:
                seen[place] = True
                order.append(place)
    return order
