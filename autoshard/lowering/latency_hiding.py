"""The order of kernels beside which collectives run, as XLA's latency-hiding scheduler finds it.

It schedules from the end: of what all that needs it has been scheduled, that comes next (so before
all else) which is best by a list of rules. The end of a collective is taken as soon as it can be,
its start once enough has been put between.

Source: XLA's `DefaultSchedulerCore` (`latency_hiding_scheduler.cc`), with what its GPU compiler
sets: one collective at a time, and aggressive policies.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from autoshard.lowering.memory_scheduler import Work, users_of

_EDGE = 1.0
"""Microseconds between work and what needs it."""


def hiding_order(works: Sequence[Work], order: Sequence[int]) -> list[int]:
    """Places in the order in which a GPU issues them.

    Args:
        works: In an order in which they could run.
        order: Of the memory scheduler, which decides between equals.
    """
    return _Scheduler(works, order).run()


class _Scheduler:
    """State of one body.

    Args:
        works: Of the body.
        order: Of the memory scheduler.
    """

    def __init__(self, works: Sequence[Work], order: Sequence[int]) -> None:
        self._works = works
        self._users = users_of([one.needs for one in works])
        self._turn = [0] * len(works)
        for number, place in enumerate(order):
            self._turn[place] = number
        self._unlocks_end = [any(works[n].start >= 0 for n in one.needs) for one in works]
        self._depth = _depths(works)
        self._unscheduled = [len(users) for users in self._users]
        self._is_scheduled = [False] * len(works)
        self._num_freed = [0] * len(works)  # what becomes ready with it
        for users in self._users:
            self._count(users)
        self._ready_at = [0.0] * len(works)
        self._now = 0.0
        self._free: list[int] = []  # ready, and takes no time
        self._ends: list[int] = []  # ready ends of collectives
        self._start: int | None = None  # of the one collective that is sent, if ready
        self._is_sending = False
        self._ready: dict[float, list[int]] = {}  # by depth, what else is ready now
        self._depths: list[float] = []  # a heap of these, the deepest first
        self._waiting: list[tuple[float, int]] = []  # a heap of what is ready at some time
        self._later: list[int] = []  # what was not ready at once, until its time is over

    def run(self) -> list[int]:
        """Schedule all of it."""
        for place, users in enumerate(self._users):
            if not users:
                self._release(place)
        found: list[int] = []
        while len(found) < len(self._works):
            place = self._free.pop() if self._free else self._next()
            found.append(place)
            self._schedule(place)
        return found[::-1]

    def _next(self) -> int:
        """Take the best of what is ready; where nothing is yet, of what is first."""
        if self._ends and not self._is_sending:
            least = min(max(self._ready_at[one], self._now) for one in self._ends)
            soon = [one for one in self._ends if self._ready_at[one] <= least]
            best = self._best(self._deepest(soon))
            self._ends.remove(best)
            return best
        self._wake(self._now)
        start = self._start
        is_ready = start is not None and self._ready_at[start] <= self._now
        if not self._depths and not is_ready:
            first = self._waiting[0][0] if self._waiting else float("inf")
            if start is not None and self._ready_at[start] <= first:
                first, is_ready = self._ready_at[start], True
            self._wake(first)
        if start is not None and is_ready and self._goes_first(start):
            self._start = None
            return start
        depth = -self._depths[0]
        best = self._best(self._ready[depth])
        is_level = start is not None and is_ready and self._depth[start] == depth > 0
        if start is not None and is_level and self._starts_instead(start, best):
            self._start = None
            return start
        self._ready[depth].remove(best)
        if not self._ready[depth]:
            heapq.heappop(self._depths)
            del self._ready[depth]
        return best

    def _goes_first(self, start: int) -> bool:
        """True where the start of a collective comes before all other work that is ready."""
        if not self._depths or self._ends:
            return True
        return self._depth[start] > 0 and -self._depths[0] < self._depth[start]

    def _deepest(self, places: Sequence[int]) -> list[int]:
        deepest = max(self._depth[place] for place in places)
        return [place for place in places if self._depth[place] == deepest]

    def _best(self, places: Sequence[int]) -> int:
        """The best of equally urgent work, by what it hides and by what becomes ready with it."""
        if len(places) == 1:
            return places[0]
        unlocks, freed, turn = self._unlocks_end, self._num_freed, self._turn
        if not self._later:
            return max(places, key=lambda one: (unlocks[one], freed[one], turn[one]))
        wanted = self._wanted()

        def fit(one: int) -> tuple[float, bool, int, int]:
            return -self._misses(one, wanted), unlocks[one], freed[one], turn[one]

        return max(places, key=fit)

    def _wanted(self) -> float:
        """Microseconds until the first of what is ready later."""
        return min(self._ready_at[place] for place in self._later) - self._now

    def _misses(self, place: int, wanted: float) -> float:
        return abs(wanted - self._works[place].microseconds)

    def _starts_instead(self, start: int, best: int) -> bool:
        """True where the start of a collective is better than equally urgent work.

        It hides nothing, so that it is never better by that.
        """
        if self._later:
            wanted = self._wanted()
            if self._misses(best, wanted) < self._misses(start, wanted):
                return False
        one, other = (
            (self._unlocks_end[place], self._num_freed[place], self._turn[place])
            for place in (start, best)
        )
        return one > other

    def _wake(self, now: float) -> None:
        """Make ready all that waited until some time."""
        while self._waiting and self._waiting[0][0] <= now:
            _, place = heapq.heappop(self._waiting)
            depth = self._depth[place]
            if depth not in self._ready:
                self._ready[depth] = []
                heapq.heappush(self._depths, -depth)
            self._ready[depth].append(place)

    def _count(self, users: Sequence[int]) -> None:
        """The last of so many users makes what they need ready."""
        left = [user for user in users if not self._is_scheduled[user]]
        if len(left) == 1:
            self._num_freed[left[0]] += 1

    def _release(self, place: int) -> None:
        """All that needs it is scheduled."""
        work = self._works[place]
        if work.is_free:
            self._free.append(place)
        elif work.start >= 0:
            self._ends.append(place)
        elif work.latency:
            self._start = place
        else:
            heapq.heappush(self._waiting, (self._ready_at[place], place))

    def _schedule(self, place: int) -> None:
        works, ready_at = self._works, self._ready_at
        if works[place].latency:
            self._is_sending = False
        if works[place].start >= 0:
            self._is_sending = True
        self._is_scheduled[place] = True
        ready_at[place] = self._earliest(place)
        self._now = ready_at[place] + works[place].microseconds
        self._later = [one for one in self._later if ready_at[one] >= self._now]
        for need in works[place].needs:
            self._unscheduled[need] -= 1
            if self._unscheduled[need]:
                if self._unscheduled[need] == 1:
                    self._count(self._users[need])
                continue
            ready_at[need] = self._earliest(need)
            if ready_at[need] > self._now and not works[need].is_free:
                self._later.append(need)
            self._release(need)

    def _earliest(self, place: int) -> float:
        """When it is ready, as all that needs it is scheduled."""
        waits = [self._ready_at[user] + self._wait(place, user) for user in self._users[place]]
        return max(self._now, *waits) if waits else self._now

    def _wait(self, place: int, user: int) -> float:
        is_pair = self._works[user].start == place
        return self._works[place].latency if is_pair else _EDGE


def _depths(works: Sequence[Work]) -> list[float]:
    """Per work, microseconds of the collectives that it waits for, one for another."""
    found = [0.0] * len(works)
    for place, one in enumerate(works):
        depth = max((found[need] for need in one.needs), default=0.0)
        found[place] = depth + (works[one.start].latency if one.start >= 0 else 0.0)
    return found
