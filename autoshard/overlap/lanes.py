"""Collectives beside computation: when each task of a program runs, and how long anyone waits.

A device computes and communicates at the same time. A task takes the compute lane, the network
lane, or, where a collective blocks, both. Tasks are started greedily: whenever a lane is free, the
most urgent task starts that is ready; a collective only beside a task that covers it, or where
nothing can be computed before it is over. All collectives share one network, whatever axes they are
over, which is on the careful side.

A program is a tree of bodies. The body of a loop is scheduled on its own, and stands in the body
around it as one task that takes both lanes: nothing is assumed to run beside a loop, or to cross
from one run of its body into the next.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Lane(Enum):
    """What a task takes while it runs."""

    COMPUTE = "compute"
    NETWORK = "network"
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class Task:
    """A stretch of work in a body.

    Args:
        seconds: How long it runs.
        lane: What it takes meanwhile.
        needs: Places of earlier tasks of the body that must be over before it starts.
        covers: Whether collectives start while it computes.
    """

    seconds: float
    lane: Lane
    needs: tuple[int, ...] = ()
    covers: bool = True


@dataclass(frozen=True, slots=True)
class Timeline:
    """When the tasks of a body run.

    Args:
        starts: Per task, seconds after the body starts.
        exposed: Per task that communicates, the seconds of it in which nothing is computed; 0 for
            the others.
        seconds: When the last task is over. It is the computing of the body and all that is
            exposed.
    """

    starts: tuple[float, ...]
    exposed: tuple[float, ...]
    seconds: float


def schedule(tasks: Sequence[Task]) -> Timeline:
    """Start tasks as early as lanes and needs allow.

    A collective is as urgent as the first task that reads it, all else as its place in the body.
    A blocking task that waits for a lane keeps the network from new tasks that are less urgent, so
    that prefetching never holds it up for longer than one collective.

    Args:
        tasks: In an order in which they could run one by one.

    Returns:
        A timeline in which at every moment at least one lane works, so that it ends no later than
        if the tasks ran one by one.
    """
    readers: list[list[int]] = [[] for _ in tasks]
    for place, task in enumerate(tasks):
        for need in task.needs:
            readers[need].append(place)
    ready = _Ready(tasks, _urgency(tasks, readers))
    waits_for = [len(task.needs) for task in tasks]
    for place, waits in enumerate(waits_for):
        if waits == 0:
            ready.add(place)
    starts = [0.0] * len(tasks)
    running: list[tuple[float, int]] = []
    now = 0.0
    while True:
        while (started := ready.take()) is not None:
            starts[started] = now
            ready.is_covered = ready.is_covered or _is_cover(tasks[started])
            heapq.heappush(running, (now + tasks[started].seconds, started))
        if not running:
            return Timeline(tuple(starts), tuple(_exposed(tasks, starts)), now)
        now, over = heapq.heappop(running)
        ready.busy -= _lanes(tasks[over])
        if _is_cover(tasks[over]):
            ready.is_covered = False
        for reader in readers[over]:
            waits_for[reader] -= 1
            if waits_for[reader] == 0:
                ready.add(reader)


def _is_cover(task: Task) -> bool:
    return task.covers and _lanes(task) == {Lane.COMPUTE}


def _lanes(task: Task) -> set[Lane]:
    """What a task takes; nothing, where it takes no time."""
    if task.seconds <= 0:
        return set()
    return {Lane.COMPUTE, Lane.NETWORK} if task.lane is Lane.BOTH else {task.lane}


def _urgency(tasks: Sequence[Task], readers: Sequence[Sequence[int]]) -> list[float]:
    """Per task, what is started first where several are ready: the lower."""
    found: list[float] = [float(place) for place in range(len(tasks))]
    for place in reversed(range(len(tasks))):
        if tasks[place].lane is Lane.NETWORK or tasks[place].seconds <= 0:
            found[place] = min((found[r] for r in readers[place]), default=float(len(tasks)))
    return found


_COMPUTING = frozenset({Lane.COMPUTE})
_SENDING = frozenset({Lane.NETWORK})


class _Ready:
    """Tasks that nothing is missing for but a lane.

    Args:
        tasks: Of the body.
        urgency: Per task, the lower the sooner.
    """

    def __init__(self, tasks: Sequence[Task], urgency: Sequence[float]) -> None:
        self.busy: set[Lane] = set()
        self.is_covered = False  # whether what computes now covers collectives
        self._tasks = tasks
        self._urgency = urgency
        self._waiting: dict[frozenset[Lane], list[tuple[float, int]]] = {}

    def add(self, place: int) -> None:
        lanes = frozenset(_lanes(self._tasks[place]))
        heapq.heappush(self._waiting.setdefault(lanes, []), (self._urgency[place], place))

    def take(self) -> int | None:
        """The most urgent task that can start now, its lanes marked busy; None where none can."""
        closed = set(self.busy)
        heads = sorted((queue[0], lanes) for lanes, queue in self._waiting.items() if queue)
        computes = Lane.COMPUTE in closed or any(lanes == _COMPUTING for _, lanes in heads)
        for (_, place), lanes in heads:
            if lanes == _SENDING and computes and not self.is_covered:
                continue
            if closed.isdisjoint(lanes):
                heapq.heappop(self._waiting[lanes])
                self.busy |= lanes
                return place
            if len(lanes) > 1:
                closed.add(Lane.NETWORK)
        return None


def _exposed(tasks: Sequence[Task], starts: Sequence[float]) -> list[float]:
    """Per task that communicates, how long of it nothing is computed."""
    computing = sorted(
        (start, start + task.seconds)
        for task, start in zip(tasks, starts, strict=True)
        if task.lane is Lane.COMPUTE and task.seconds > 0
    )
    found = [0.0] * len(tasks)
    sending = sorted(
        (start, place)
        for place, start in enumerate(starts)
        if tasks[place].lane is not Lane.COMPUTE
    )
    first = 0
    for start, place in sending:
        stop = start + tasks[place].seconds
        while first < len(computing) and computing[first][1] <= start:
            first += 1
        covered, at = 0.0, first
        while at < len(computing) and computing[at][0] < stop:
            covered += min(stop, computing[at][1]) - max(start, computing[at][0])
            at += 1
        found[place] = max(0.0, tasks[place].seconds - covered)
    return found
