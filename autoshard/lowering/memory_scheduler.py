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

_TIE = 0.002
"""Share by which the greedy order has to hold less to be taken.

Where the most is live in the forward pass, all orders hold about that, and libtpu's greedy one a
little more, of small buffers that it makes early: 0.04 and 0.06 % on two programs (libtpu 0.0.52
tells it with `TPU_VMODULE=hlo_memory_scheduler=2`).
"""


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
        joins: The place of the work in whose kernel it runs, which waits for what it needs; -1: in
            its own.
        is_in_place: It writes to the buffer of a donated argument.
        called_bytes: Held in the body that it runs, by order.
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


class MemoryOrders(NamedTuple):
    """Places of a body in three orders: depth first, as written, and greedily.

    Args:
        places: By order.
        held: By order, the most bytes that are there at one time, in called bodies too.
    """

    places: tuple[list[int], ...]
    held: tuple[int, ...]

    def best(self) -> int:
        """Which order holds the least; of about equal ones a depth-first one."""
        deep, written, greedy = self.held
        if greedy * (1 + _TIE) < min(deep, written):
            return 2
        return 1 if written < deep else 0


def memory_orders(works: Sequence[Work], ends: Sequence[int] = ()) -> MemoryOrders:
    """The orders of a body, of which one is taken for the whole program.

    Args:
        works: In an order in which they could run.
        ends: Places of those that make results, in the order of these.
    """
    users = users_of([one.needs for one in works])
    last = (place for place, one in enumerate(users) if not one)
    kernels = _kernels(works)
    of_kernels = users_of([one.needs for one in kernels])
    ends = [_kernel(works, place) for place in (*ends, *last)]
    roots = tuple(dict.fromkeys(ends))
    written = _visited(kernels, roots, None)
    orders = (
        _with_joined(works, _depth_first(kernels, of_kernels, roots, written)),
        _with_joined(works, written),
        _with_joined(works, _by_bytes_freed(works, users)),
    )
    held = (_most_live(works, users, order, which) for which, order in enumerate(orders))
    return MemoryOrders(orders, tuple(held))


def _kernel(works: Sequence[Work], place: int) -> int:
    """The place of the work in whose kernel one runs."""
    return works[place].joins if works[place].joins >= 0 else place


def _kernels(works: Sequence[Work]) -> list[Work]:
    """The same works, each kernel with the bytes of all that runs in it; nothing needs the rest."""
    made = _made_by_kernels(works)
    return [
        one._replace(
            needs=tuple(dict.fromkeys(_kernel(works, need) for need in one.needs)),
            num_bytes=made[place],
        )
        if one.joins < 0
        else Work()
        for place, one in enumerate(works)
    ]


def _with_joined(works: Sequence[Work], order: Sequence[int]) -> list[int]:
    """The same order of kernels, all that runs in one of them at once."""
    joined: dict[int, list[int]] = {}
    for place, one in enumerate(works):
        if one.joins >= 0:
            joined.setdefault(one.joins, []).append(place)
    kernels = (place for place in order if works[place].joins < 0)
    return [one for place in kernels for one in (place, *joined.get(place, ()))]


def _most_live(
    works: Sequence[Work], users: Sequence[Sequence[int]], order: Sequence[int], which: int
) -> int:
    """The most bytes that are there at one time, if called bodies run in their order `which`."""
    turn = [0] * len(works)
    for number, place in enumerate(order):
        turn[place] = number
    change = [0] * (len(works) + 1)
    for place, one in enumerate(works):
        new_bytes = 0 if one.is_in_place else one.num_bytes
        called = one.called_bytes[which] if one.called_bytes else 0
        change[turn[place]] += new_bytes + called
        change[turn[place] + 1] -= called
        if not one.is_kept:
            last = max((turn[user] for user in users[place]), default=turn[place])
            change[last + 1] -= new_bytes
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
