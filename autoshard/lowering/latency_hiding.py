"""The order of kernels beside which collectives run, as XLA's latency-hiding scheduler finds it.

It schedules from the end: of what all that needs it has been scheduled, that comes next (so before
all else) which is best by a list of rules. A collective's end is taken as soon as it can be, its
start once enough has been put between.

Source: XLA's `DefaultSchedulerCore` (`latency_hiding_scheduler.cc`), with what its GPU compiler
sets: one collective at a time, and aggressive policies.
"""

from __future__ import annotations

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
        self._users = users_of(works)
        self._turn = [0] * len(works)
        for number, place in enumerate(order):
            self._turn[place] = number
        self._is_start = [one.latency > 0 for one in works]
        self._is_end = [one.start >= 0 for one in works]
        self._unlocks_end = [any(works[n].start >= 0 for n in one.needs) for one in works]
        self._depth = self._depths()
        self._unscheduled = [len(users) for users in self._users]
        self._ready_at = [0.0] * len(works)
        self._ready: list[int] = []
        self._later: list[int] = []  # ready in some time
        self._free: list[int] = []  # ready, and takes no time
        self._now = 0.0
        self._is_sending = False
        self._ends_waiting = 0

    def _depths(self) -> list[float]:
        """Per work, microseconds of the collectives that it waits for, one for another."""
        found = [0.0] * len(self._works)
        for place, one in enumerate(self._works):
            depth = max((found[need] for need in one.needs), default=0.0)
            found[place] = depth + (self._works[one.start].latency if one.start >= 0 else 0.0)
        return found

    def run(self) -> list[int]:
        """Schedule all of it."""
        for place, users in enumerate(self._users):
            if not users:
                self._ready.append(place)
                self._ends_waiting += self._is_end[place]
        found = []
        while self._ready or self._free:
            if self._free:
                place = self._free.pop()
            else:
                place = self._best()
                self._ready.remove(place)
            found.append(place)
            self._schedule(place)
        return found[::-1]

    def _best(self) -> int:
        latest = min((self._ready_at[place] for place in self._later), default=None)
        best, best_key = -1, None
        for place in self._ready:
            if self._is_end[place] and self._is_sending:
                continue
            key = self._key(place)
            if best_key is None or key > best_key:
                best, best_key = place, key
            elif key == best_key and self._is_better(place, best, latest):
                best = place
        return best

    def _key(self, place: int) -> tuple[bool, float, bool, bool, float]:
        """The rules that compare one number of each."""
        is_start = self._is_start[place]
        is_awaited = is_start and self._is_sending and self._ends_waiting > 0
        return (
            self._is_end[place],
            min(self._now - self._ready_at[place], 0.0),
            not is_start or self._depth[place] > 0 or is_awaited,
            is_awaited,
            self._depth[place],
        )

    def _is_better(self, one: int, other: int, latest: float | None) -> bool:
        """The rules that compare two, and those that are asked seldom."""
        if latest is not None:
            wanted = latest - self._now
            misses = abs(wanted - self._works[one].microseconds)
            others = abs(wanted - self._works[other].microseconds)
            if misses < others and not self._is_start[one]:
                return True
            if others < misses and not self._is_start[other]:
                return False
        if self._unlocks_end[one] != self._unlocks_end[other]:
            return self._unlocks_end[one]
        freed, others_freed = self._num_freed(one), self._num_freed(other)
        if freed != others_freed:
            return freed > others_freed
        return self._turn[one] > self._turn[other]

    def _num_freed(self, place: int) -> int:
        """What becomes ready with it."""
        return sum(self._unscheduled[need] == 1 for need in self._works[place].needs)

    def _schedule(self, place: int) -> None:
        works, ready_at = self._works, self._ready_at
        if self._is_start[place]:
            self._is_sending = False
        if self._is_end[place]:
            self._is_sending = True
            self._ends_waiting -= 1
        ready_at[place] = self._earliest(place, self._now)
        self._now = ready_at[place] + works[place].microseconds
        self._later = [one for one in self._later if ready_at[one] >= self._now]
        for need in works[place].needs:
            self._unscheduled[need] -= 1
            if self._unscheduled[need]:
                continue
            ready_at[need] = self._earliest(need, self._now)
            self._ends_waiting += self._is_end[need]
            if works[need].is_free:
                self._free.append(need)
                continue
            self._ready.append(need)
            if ready_at[need] > self._now:
                self._later.append(need)

    def _earliest(self, place: int, now: float) -> float:
        """When it is ready, as all that needs it is scheduled."""
        waits = [self._ready_at[user] + self._wait(place, user) for user in self._users[place]]
        return max(now, *waits) if waits else now

    def _wait(self, place: int, user: int) -> float:
        is_pair = self._works[user].start == place
        return self._works[place].latency if is_pair else _EDGE
