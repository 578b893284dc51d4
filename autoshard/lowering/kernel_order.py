"""The order in which a compiler issues the kernels and collectives of a body."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from autoshard.lowering.latency_hiding import hiding_order
from autoshard.lowering.local_program import Instruction, Opcode
from autoshard.lowering.memory_scheduler import Work, memory_order
from autoshard.lowering.schedule import Lane, Task


@dataclass(frozen=True, slots=True)
class KernelOrder:
    """Tasks of a body as they are issued.

    Args:
        instructions: Of the tasks.
        tasks: Places of the tasks, one that is fused right before the first that computes it; a
            collective where it starts.
    """

    instructions: tuple[Instruction, ...]
    tasks: tuple[tuple[bool, int], ...]


def kernel_order(
    tasks: Sequence[Task],
    kept: frozenset[int],
    microseconds: Callable[[Task], float],
    *,
    hides_latency: bool,
) -> KernelOrder:
    """Order the tasks of a body.

    Args:
        tasks: In an order in which they could run one by one.
        kept: Places of those whose results are there until the body ends.
        microseconds: What the compiler takes a kernel to last.
        hides_latency: Put kernels between the start and the end of collectives.
    """
    body = _Works(tasks, _writing(tasks, kept))
    for members in _one_by_one(tasks):
        body.add(members, microseconds)
    order = memory_order(body.works)
    if hides_latency:
        order = hiding_order(body.works, order)
    return body.issued(order)


def _writing(tasks: Sequence[Task], kept: frozenset[int]) -> frozenset[int]:
    """The tasks that write what is kept."""
    open_, seen = [*kept], set(kept)
    while open_:
        place = open_.pop()
        if tasks[place].is_fused:
            more = set(tasks[place].needs) - seen
            seen |= more
            open_ += more
    return frozenset(place for place in seen if not tasks[place].is_fused)


def _one_by_one(tasks: Sequence[Task]) -> Iterator[list[int]]:
    """Places of tasks, those of one call together, in an order in which they could run."""
    calls: dict[int, list[int]] = {}
    unit_of: list[int] = []  # per task, the first of its call
    for place, task in enumerate(tasks):
        first = place
        if task.call is not None:
            calls.setdefault(task.call, []).append(place)
            first = calls[task.call][0]
        unit_of.append(first)
    members = {place: [place] for place in unit_of} | {one[0]: one for one in calls.values()}
    needs = {
        unit: {unit_of[n] for one in places for n in tasks[one].needs}
        for unit, places in members.items()
    }
    users: dict[int, list[int]] = {unit: [] for unit in members}
    for unit, needed in needs.items():
        for need in needed:
            users[need].append(unit)
    waits_for = {unit: len(needed) for unit, needed in needs.items()}
    ready = [unit for unit, waits in waits_for.items() if not waits]
    heapq.heapify(ready)
    while ready:
        unit = heapq.heappop(ready)
        yield members[unit]
        for user in users[unit]:
            waits_for[user] -= 1
            if not waits_for[user]:
                heapq.heappush(ready, user)


@dataclass(slots=True)
class _Works:
    """What the tasks of a body are for a compiler."""

    tasks: Sequence[Task]
    kept: frozenset[int]
    works: list[Work] = field(default_factory=list)
    _members: list[list[int]] = field(default_factory=list)  # per work, its tasks
    _behind: dict[int, tuple[int, ...]] = field(default_factory=dict)  # by task, works it waits for

    def add(self, members: list[int], microseconds: Callable[[Task], float]) -> None:
        """The works of a task, or of the tasks of one call."""
        tasks = [self.tasks[place] for place in members]
        first = tasks[0]
        needs = tuple(
            dict.fromkeys(work for task in tasks for n in task.needs for work in self._behind[n])
        )
        if first.is_fused:
            self._behind[members[0]] = needs
            return
        num_bytes = sum(task.num_bytes for task in tasks)
        is_kept = not self.kept.isdisjoint(members)
        if first.lane is Lane.NETWORK:
            latency = 1e6 * sum(task.seconds for task in tasks)
            start = self._new(members, Work(needs, num_bytes, is_kept, 1.0, latency))
            made = self._new(members, Work((start,), 0, is_kept, 1.0, start=start))
        else:
            cost = microseconds(first)
            made = self._new(members, Work(needs, num_bytes, is_kept, cost))
            if cost == 10.0:
                made = self._new([], Work((made,), 0, is_kept, is_free=True))
        for place in members:
            self._behind[place] = (made,)

    def _new(self, members: list[int], work: Work) -> int:
        self.works.append(work)
        self._members.append(members)
        return len(self.works) - 1

    def issued(self, order: Sequence[int]) -> KernelOrder:
        """The works in some order, as tasks and as instructions."""
        instructions: list[Instruction] = []
        tasks: list[tuple[bool, int]] = []
        done: set[int] = set()

        def emit(place: int) -> None:
            fused = [place]
            while fused:
                one = fused[-1]
                left = [
                    n for n in self.tasks[one].needs if n not in done and self.tasks[n].is_fused
                ]
                if left:
                    fused.append(left[0])
                    continue
                fused.pop()
                if one not in done:
                    done.add(one)
                    tasks.append((False, one))
                    instructions.extend(self.tasks[one].issues)

        for work in order:
            if self.works[work].start >= 0:
                tasks += [(True, place) for place in self._members[work]]
                instructions += [
                    Instruction(Opcode.DONE, target)
                    for place in self._members[work]
                    for _, target in self.tasks[place].issues
                ]
                continue
            for place in self._members[work]:
                emit(place)
        for place in range(len(self.tasks)):
            if place not in done:
                emit(place)
        return KernelOrder(tuple(instructions), tuple(tasks))
