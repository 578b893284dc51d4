"""The order in which a body issues its kernels and collectives: a list scheduler.

A device computes and communicates at the same time. A task takes the compute lane, the network
lane, or, where a collective blocks, both. Tasks are started greedily: whenever a lane is free, the
most urgent task starts that is ready; a collective only while a task computes that covers it, or
where none can compute before it is over. All collectives share one network, whatever axes they are
over, which is on the careful side.

A program is a tree of bodies. The body of a loop is scheduled on its own, and stands in the body
around it as one task that takes both lanes: nothing is assumed to run beside a loop, or to cross
from one run of its body into the next.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from autoshard.lowering.local_program import Instruction, Opcode
from autoshard.lowering.memory_scheduler import users_of


class Lane(Enum):
    """What a task takes while it runs; its value has a bit for each lane."""

    COMPUTE = 1
    NETWORK = 2
    BOTH = 3


class Role(Enum):
    """The part of a task in an op."""

    MOVES = "moves or converts an operand"
    FILLS = "writes the zeros that it scatters into"
    MAKES = "makes its results"
    SUMS = "sums its results over devices"


class Task(NamedTuple):
    """A stretch of work in a body.

    Args:
        seconds: How long it runs.
        lane: What it takes meanwhile.
        needs: Places of earlier tasks of the body that must be over before it starts.
        covers: Collectives start while it computes (on a late schedule: end).
        issues: Kernels, collectives or bodies that it consists of.
        role: What it does for its op.
        op: Index of the op that it is run for; -1: none.
        num_bytes: Of the buffer that it writes.
        is_in_place: That is the buffer of a donated argument.
        joins: The place of the task in whose kernel it runs; -1: in its own.
        is_fused: What needs it computes it too.
        call: Tasks of equal calls are one kernel or collective; None: it is one by itself.
    """

    seconds: float
    lane: Lane
    needs: tuple[int, ...] = ()
    covers: bool = True
    issues: tuple[Instruction, ...] = ()
    role: Role = Role.MOVES
    op: int = -1
    num_bytes: int = 0
    is_fused: bool = False
    call: int | None = None
    is_in_place: bool = False
    joins: int = -1


@dataclass(frozen=True, slots=True)
class Timeline:
    """When the tasks of a body run.

    Args:
        starts: Per task, seconds after the body starts.
        seconds: When the last task is over.
    """

    starts: tuple[float, ...]
    seconds: float


def schedule(tasks: Sequence[Task]) -> Timeline:
    """Start tasks as early as lanes and needs allow.

    A collective is as urgent as the first task that reads it, all else as its place in the body.
    A blocking task that waits for a lane keeps the network from new tasks that are less urgent, so
    that prefetching never holds it up for longer than one collective; but not while more urgent
    computing is left, as of a sum that nothing waits for.

    Args:
        tasks: In an order in which they could run one by one.

    Returns:
        A timeline in which at every moment at least one lane works, so that it ends no later than
        if the tasks ran one by one.
    """
    readers = users_of([task.needs for task in tasks])
    ready = _Ready(tasks, _urgency(tasks, readers))
    waits_for = [len(task.needs) for task in tasks]
    starts = [0.0] * len(tasks)
    running: list[tuple[float, int]] = []
    now = 0.0

    def admit(places: list[int]) -> None:
        """These wait for nothing more; those that take no time are over at once."""
        while places:
            place = places.pop()
            if tasks[place].seconds > 0:
                ready.add(place)
                continue
            starts[place] = now
            places += released(place)

    def released(place: int) -> list[int]:
        """What waited for a task that is over, and for nothing else."""
        for reader in readers[place]:
            waits_for[reader] -= 1
        return [reader for reader in readers[place] if not waits_for[reader]]

    admit([place for place, waits in enumerate(waits_for) if not waits])
    while True:
        while (started := ready.take()) is not None:
            starts[started] = now
            heapq.heappush(running, (now + tasks[started].seconds, started))
        if not running:
            return Timeline(tuple(starts), now)
        now = running[0][0]
        over: list[int] = []
        while running and running[0][0] <= now:
            _, ended = heapq.heappop(running)
            ready.busy &= ~tasks[ended].lane.value
            over += released(ended)
        admit(over)


def schedule_late(tasks: Sequence[Task]) -> Timeline:
    """Start tasks as late as lanes and readers allow: as `schedule`, from the end of the body.

    So a collective is over right before the first task that reads it, and runs beside what comes
    before that.
    """
    last = len(tasks) - 1
    turned = [
        task._replace(needs=tuple(last - reader for reader in reversed(readers)))
        for task, readers in zip(
            reversed(tasks), reversed(users_of([task.needs for task in tasks])), strict=True
        )
    ]
    found = schedule(turned)
    starts = (
        found.seconds - start - task.seconds
        for start, task in zip(found.starts, turned, strict=True)
    )
    return Timeline(tuple(starts)[::-1], found.seconds)


def issued_in_turn(tasks: Iterable[Task]) -> tuple[tuple[Instruction, ...], float]:
    """The instructions and the seconds of a body in which every collective blocks.

    Its tasks run one by one, in order, and those that take no time come last: as `issue_order`
    gives them.
    """
    instructions: list[Instruction] = []
    last: list[Instruction] = []
    seconds = 0.0
    for task in tasks:
        (instructions if task.seconds else last).extend(task.issues)
        seconds += task.seconds
    return (*instructions, *last), seconds


_SAME = 1e-9
"""Of a task's seconds: moments that are nearer to its start or its end than that are these."""


def issue_order(tasks: Sequence[Task], timeline: Timeline) -> tuple[Instruction, ...]:
    """The instructions of a body, in the order in which the timeline starts its tasks.

    An asynchronous collective that starts in the middle of a task is issued before it if that
    covers it, else after it; it is waited for before the first task that starts after its end, or
    needs it. Before a called body all are waited for.

    Args:
        tasks: Of the body.
        timeline: When they run.
    """
    return tuple(_Issue(tasks, timeline).instructions())


class _Issue:
    """Turns a timeline into instructions.

    Args:
        tasks: Of the body.
        timeline: When they run.
    """

    def __init__(self, tasks: Sequence[Task], timeline: Timeline) -> None:
        self._tasks, self._starts = tasks, timeline.starts
        order = sorted(range(len(tasks)), key=lambda place: (timeline.starts[place], place))
        self._sends = [p for p in order if tasks[p].lane is Lane.NETWORK]
        self._works = [p for p in order if tasks[p].lane is not Lane.NETWORK and tasks[p].seconds]
        turn = {place: number for number, place in enumerate(self._works)}
        self._after: list[int] = []  # per task, the number of the last work that it needs
        self._awaits: list[frozenset[int]] = []  # per task, sends that its readers wait for
        for place, task in enumerate(tasks):
            after = turn.get(place)
            if after is None:
                after = max((self._after[n] for n in task.needs), default=-1)
            self._after.append(after)
            self._awaits.append(self._awaited(place, task))
        self._underway: dict[int, None] = {}

    def _awaited(self, place: int, task: Task) -> frozenset[int]:
        if task.lane is Lane.NETWORK and task.seconds:
            return frozenset((place,))
        if task.seconds or not task.needs:
            return frozenset()
        return frozenset().union(*(self._awaits[need] for need in task.needs))

    def instructions(self) -> Iterator[Instruction]:
        first = 0
        for number, place in enumerate(self._works):
            task = self._tasks[place]
            over = self._starts[place] + task.seconds * (1 - _SAME if task.covers else _SAME)
            while first < len(self._sends) and self._starts[self._sends[first]] < over:
                if self._after[self._sends[first]] >= number:
                    break
                yield from self._send(self._sends[first])
                first += 1
            calls = any(one.opcode is Opcode.CALL for one in task.issues)
            now = self._starts[place] + task.seconds * _SAME
            waited = {one for one in self._underway if calls or self._end(one) <= now}
            for need in task.needs:
                waited |= self._awaits[need] & self._underway.keys()
            for sent in sorted(waited):
                del self._underway[sent]
                yield from (Instruction(Opcode.DONE, one) for _, one in self._tasks[sent].issues)
            yield from task.issues
        for place in self._sends[first:]:
            yield from self._send(place)
        done = set(self._works)
        for place, task in enumerate(self._tasks):  # what takes no time
            if task.lane is not Lane.NETWORK and place not in done:
                yield from task.issues

    def _end(self, place: int) -> float:
        return self._starts[place] + self._tasks[place].seconds

    def _send(self, place: int) -> Iterator[Instruction]:
        if self._tasks[place].seconds:
            self._underway[place] = None
        yield from self._tasks[place].issues


def _urgency(tasks: Sequence[Task], readers: Sequence[Sequence[int]]) -> list[float]:
    """Per task, what is started first where several are ready: the lower."""
    found: list[float] = [float(place) for place in range(len(tasks))]
    for place in reversed(range(len(tasks))):
        if tasks[place].lane is Lane.NETWORK or tasks[place].seconds <= 0:
            found[place] = min((found[r] for r in readers[place]), default=float(len(tasks)))
    return found


_COMPUTING, _SENDING, _BLOCKING = (lane.value for lane in Lane)


class _Ready:
    """Tasks that nothing is missing for but a lane; all of them take time.

    Args:
        tasks: Of the body.
        urgency: Per task, what is started first: the lower.
    """

    def __init__(self, tasks: Sequence[Task], urgency: Sequence[float]) -> None:
        self.busy = 0
        self._tasks = tasks
        self._urgency = urgency
        self._waiting: dict[int, list[tuple[float, int]]] = {}
        self._covers = True  # what computes now, or did last, covers collectives
        self._computing = deque(p for p, one in enumerate(tasks) if one.lane is Lane.COMPUTE)
        self._is_started = [one.seconds <= 0 for one in tasks]

    def add(self, place: int) -> None:
        lanes = self._tasks[place].lane.value
        heapq.heappush(self._waiting.setdefault(lanes, []), (self._urgency[place], place))

    def take(self) -> int | None:
        """The most urgent task that can start now, its lanes marked busy; None where none can.

        A collective that nothing would cover lets the computing that is ready go first.
        """
        closed = self.busy
        if closed == _BLOCKING:
            return None
        heads = sorted((queue[0], lanes) for lanes, queue in self._waiting.items() if queue)
        computing = next((place for (_, place), lanes in heads if lanes == _COMPUTING), None)
        for (urgency, place), lanes in heads:
            if lanes == _SENDING and not closed & _SENDING:
                if self.busy & _COMPUTING:
                    if not self._covers:
                        continue
                elif computing is not None and not self._tasks[computing].covers:
                    return self._started(computing, _COMPUTING)
            if not closed & lanes:
                return self._started(place, lanes)
            if lanes == _BLOCKING and urgency < self._next_computing():
                closed |= _SENDING
        return None

    def _started(self, place: int, lanes: int) -> int:
        heapq.heappop(self._waiting[lanes])
        self.busy |= lanes
        self._is_started[place] = True
        if lanes == _COMPUTING:
            self._covers = self._tasks[place].covers
        return place

    def _next_computing(self) -> float:
        """The most urgent computing that is not started, ready or not."""
        while self._computing and self._is_started[self._computing[0]]:
            self._computing.popleft()
        return self._computing[0] if self._computing else float("inf")
