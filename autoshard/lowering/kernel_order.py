"""The orders in which XLA's schedulers issue the kernels and collectives of a body."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from autoshard.lowering.latency_hiding import hiding_order
from autoshard.lowering.local_program import Instruction, Opcode
from autoshard.lowering.memory_scheduler import MemoryOrders, Work, memory_orders
from autoshard.lowering.schedule import Lane, Task


class Issued(NamedTuple):
    """A task of a body when it begins; an asynchronous collective also when it is over."""

    task: int
    is_over: bool


class AssumedKernel(NamedTuple):
    """A kernel as a scheduler estimates it.

    Args:
        microseconds: How long it runs.
        is_library_call: Its result is taken out of a tuple.
    """

    microseconds: float
    is_library_call: bool = False


@dataclass(frozen=True, slots=True)
class KernelOrder:
    """Tasks of a body as they are issued.

    Args:
        tasks: Those that are fused come right before the first that computes them.
        instructions: Of the tasks.
    """

    tasks: tuple[Issued, ...]
    instructions: tuple[Instruction, ...]

    @property
    def turns(self) -> Mapping[int, int]:
        """By place of a task, the number of tasks that are issued before it, in that order."""
        turns: dict[int, int] = {}
        for place, _ in self.tasks:
            turns.setdefault(place, len(turns))
        return turns

    def in_turn(self, tasks: Sequence[Task]) -> list[Task]:
        """The same tasks, each at the place at which it is issued."""
        turns = self.turns
        return [
            tasks[place]._replace(needs=tuple(sorted(map(turns.__getitem__, tasks[place].needs))))
            for place in turns
        ]


@dataclass(frozen=True, slots=True)
class KernelOrders:
    """The orders of the tasks of a body, of which a compiler takes one for all bodies.

    Args:
        memory: Of the works of the body.
    """

    memory: MemoryOrders
    _body: _Works
    _hides: bool

    def issued(self, which: int) -> KernelOrder:
        """The tasks as they are issued in one of the orders."""
        order = self.memory.places[which]
        return self._body.issued(hiding_order(self._body.works, order) if self._hides else order)


def kernel_orders(
    tasks: Sequence[Task],
    kept: Sequence[int],
    assumed: Callable[[Task], AssumedKernel],
    *,
    latency: float | None,
    called: Mapping[int, tuple[int, ...]],
) -> KernelOrders:
    """Order the tasks of a body.

    Args:
        tasks: In an order in which they could run one by one.
        kept: Places of those whose results are there until the body ends, in the order of these.
        assumed: What the schedulers take the kernel of a task to be.
        latency: Microseconds that an asynchronous collective is taken to last beside its seconds;
            None where nothing is put between its start and its end.
        called: By index of a body that is called, the most bytes that are live in it, by order.
    """
    body = _Works(tasks, _writing(tasks, kept), latency or 0.0, called)
    for members in _one_by_one(tasks):
        body.add(members, assumed)
    return KernelOrders(memory_orders(body.works, body.behind(kept)), body, latency is not None)


def _writing(tasks: Sequence[Task], kept: Sequence[int]) -> frozenset[int]:
    """Places of the tasks that write what is kept."""
    open_, seen = [*kept], set(kept)
    while open_:
        task = tasks[open_.pop()]
        if task.is_fused:
            more = set(task.needs) - seen
            seen |= more
            open_ += more
    return frozenset(place for place in seen if not tasks[place].is_fused)


def _one_by_one(tasks: Sequence[Task]) -> Iterator[list[int]]:
    """Places of tasks, those of one call together, in an order in which they could run."""
    members: dict[int, list[int]] = {}  # by the first of them
    first_of: list[int] = []
    calls: dict[int, int] = {}
    for place, task in enumerate(tasks):
        first = place if task.call is None else calls.setdefault(task.call, place)
        first_of.append(first)
        members.setdefault(first, []).append(place)
    needs = {
        first: {first_of[need] for place in places for need in tasks[place].needs}
        for first, places in members.items()
    }
    users: dict[int, list[int]] = {first: [] for first in members}
    for first, needed in needs.items():
        for need in needed:
            users[need].append(first)
    waits_for = {first: len(needed) for first, needed in needs.items()}
    ready = [first for first, waits in waits_for.items() if not waits]
    while ready:
        first = heapq.heappop(ready)
        yield members[first]
        for user in users[first]:
            waits_for[user] -= 1
            if not waits_for[user]:
                heapq.heappush(ready, user)


@dataclass(slots=True)
class _Works:
    """The tasks of a body as the schedulers see them.

    Args:
        tasks: Of the body.
        kept: Places of those that write what is there until the body ends.
        latency: Microseconds of a collective beside its seconds.
        called: By index of a body that is called, the most bytes that are live in it, by order.
        works: What they are to a scheduler: none is fused.
    """

    tasks: Sequence[Task]
    kept: frozenset[int]
    latency: float
    called: Mapping[int, tuple[int, ...]]
    works: list[Work] = field(default_factory=list)
    _members: list[list[int]] = field(default_factory=list)  # per work, its tasks
    _behind: dict[int, tuple[int, ...]] = field(default_factory=dict)  # by task, works it waits for

    def add(self, members: list[int], assumed: Callable[[Task], AssumedKernel]) -> None:
        """Add a task, or those of one call, after all that they need."""
        tasks = [self.tasks[place] for place in members]
        first = tasks[0]
        needed = (self._behind[need] for task in tasks for need in task.needs)
        needs = tuple(dict.fromkeys(work for works in needed for work in works))
        if first.is_fused:
            self._behind[members[0]] = needs
            return
        num_bytes = sum(task.num_bytes for task in tasks)
        is_kept = not self.kept.isdisjoint(members)
        if first.lane is Lane.NETWORK:
            latency = self.latency + 1e6 * sum(task.seconds for task in tasks)
            begun = self._new(members, Work(needs, 0, is_kept, 1.0, latency))
            made = self._new(members, Work((begun,), num_bytes, is_kept, 1.0, start=begun))
        else:
            one = assumed(first)
            kernel = self._join(first, needs)
            if kernel >= 0 and kernel not in needs:
                needs = (*needs, kernel)
            is_in_place = all(task.is_in_place for task in tasks)
            calls = (i.target for task in tasks for i in task.issues if i.opcode is Opcode.CALL)
            work = Work(
                needs,
                num_bytes,
                is_kept,
                one.microseconds,
                joins=kernel,
                is_in_place=is_in_place,
                called_bytes=next((self.called[target] for target in calls), ()),
            )
            made = self._new(members, work)
            if one.is_library_call:
                made = self._new([], Work((made,), 0, is_kept, is_free=True))
        for place in members:
            self._behind[place] = (made,)

    def _join(self, task: Task, needs: tuple[int, ...]) -> int:
        """The work in whose kernel a task runs, which waits for its needs too; -1 for its own."""
        if task.joins < 0:
            return -1
        (kernel,) = self._behind[task.joins]
        if self.works[kernel].joins >= 0:
            kernel = self.works[kernel].joins
        own = self.works[kernel]
        more = [n for n in needs if n != kernel and self.works[n].joins != kernel]
        if any(need > kernel for need in more):
            return -1
        self.works[kernel] = own._replace(needs=tuple(dict.fromkeys((*own.needs, *more))))
        return kernel

    def _new(self, members: list[int], work: Work) -> int:
        self.works.append(work)
        self._members.append(members)
        return len(self.works) - 1

    def behind(self, places: Sequence[int]) -> list[int]:
        """Works that make what tasks make, in the order of the tasks."""
        return [work for place in places for work in self._behind[place]]

    def issued(self, order: Sequence[int]) -> KernelOrder:
        """The tasks, in some order of the works."""
        found: list[Issued] = []
        instructions: list[Instruction] = []
        begun = [False] * len(self.tasks)
        for work in order:
            is_over = self.works[work].start >= 0
            for place in self._members[work]:
                if is_over:
                    found.append(Issued(place, True))
                    ends = self.tasks[place].issues
                    instructions += [Instruction(Opcode.DONE, target) for _, target in ends]
                    continue
                for task in self._with_fused(place, begun):
                    found.append(Issued(task, False))
                    instructions += self.tasks[task].issues
        for place in range(len(self.tasks)):
            for task in self._with_fused(place, begun):
                found.append(Issued(task, False))
                instructions += self.tasks[task].issues
        return KernelOrder(tuple(found), tuple(instructions))

    def _with_fused(self, place: int, begun: list[bool]) -> Iterator[int]:
        """A task after what it computes itself, as far as none of that has begun."""
        stack = [] if begun[place] else [place]
        while stack:
            task = stack[-1]
            for need in self.tasks[task].needs:
                if not begun[need] and self.tasks[need].is_fused:
                    stack.append(need)
                    break
            else:
                begun[stack.pop()] = True
                yield task
