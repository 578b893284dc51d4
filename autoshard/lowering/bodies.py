"""The bodies of a program, each a list of tasks that is scheduled by itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from autoshard.graph.dataflow import trace_back
from autoshard.graph.program import Graph, Region
from autoshard.lowering.kernel_order import Issued
from autoshard.lowering.local_program import Body, HostTransfers, Instruction, Opcode
from autoshard.lowering.schedule import Lane, Task

TaskRef: TypeAlias = tuple[int, int]
"""The region of a body, and the place of a task in it."""


@dataclass(slots=True)
class TaskBody:
    """The program itself, a loop body, or a branch.

    Args:
        index: Among the bodies of the local program.
        region: Index of its region.
        parent: The region of the body around it; -1 for the program itself.
        trips: How often it runs per run of its parent.
        repeat: How often it runs in one step.
        tasks: In an order in which they could run one by one.
        outer: Tasks of the parent that must be over before it starts.
        to_and_from_host: Seconds of one run that transfers take, each way.
        is_in_place: Nothing runs beside them.
        issued: Its tasks as they are issued, if they are in another order.
        instructions: Once it is scheduled.
    """

    index: int
    region: int
    parent: int
    trips: float
    repeat: float
    tasks: list[Task] = field(default_factory=list)
    outer: set[int] = field(default_factory=set)
    to_and_from_host: list[float] = field(default_factory=lambda: [0.0, 0.0])
    is_in_place: bool = False
    issued: tuple[Issued, ...] = ()
    instructions: tuple[Instruction, ...] = ()

    @property
    def transfers(self) -> HostTransfers:
        """To and from host memory, in one run."""
        to_seconds, from_seconds = self.to_and_from_host
        return HostTransfers(to_seconds, from_seconds, self.is_in_place)


@dataclass(slots=True)
class Bodies:
    """All bodies of a program, and the tasks of values that are read in them.

    Args:
        graph: The program.

    Attributes:
        by_region: The bodies, outer ones first.
        homes: Per region, that of the body that it is scheduled in: a `shard_map` body is a part of
            the one around it.
        around: By region of a body, it and those of the bodies around it, inner first.
        made: By value, the task that makes it.
        home_of: By value, the body that makes it.
        ends: Tasks whose results are there until their body ends.
    """

    graph: Graph
    by_region: dict[int, TaskBody] = field(default_factory=dict, init=False)
    homes: list[int] = field(default_factory=list, init=False)
    around: dict[int, list[int]] = field(default_factory=dict, init=False)
    made: dict[int, TaskRef] = field(default_factory=dict, init=False)
    home_of: list[int] = field(default_factory=list, init=False)
    ends: list[TaskRef] = field(default_factory=list, init=False)
    _over: dict[int, TaskRef] = field(default_factory=dict, init=False)  # by body, its task

    def __post_init__(self) -> None:
        for region in self.graph.regions:
            if region.kind == "manual":
                self.homes.append(self.homes[region.parent])
                continue
            self.homes.append(region.index)
            parent = self.homes[region.parent] if region.parent >= 0 else -1
            repeat = self.by_region[parent].repeat if parent >= 0 else 1.0
            self.by_region[region.index] = TaskBody(
                index=len(self.by_region),
                region=region.index,
                parent=parent,
                trips=region.trip_count,
                repeat=repeat * region.trip_count,
            )
            self.around[region.index] = [region.index, *self.around.get(parent, ())]
        ops = self.graph.ops
        self.home_of += [self.homes[ops[value.op].region] for value in self.graph.values]

    def add(self, body: int, task: Task) -> int:
        """Add a task to a body; its place there."""
        tasks = self.by_region[body].tasks
        tasks.append(task)
        return len(tasks) - 1

    def needs(self, value: int, body: int) -> set[int]:
        """Tasks of a body that a value read there waits for; what lies outside, its body does.

        What no task makes (scalars, and what is spread from them) waits for what it is made of.
        """
        met = trace_back(self.graph, [value], lambda _, one: one not in self.made)
        return {place for one in met.frontier for place in self._needed(*self.made[one], body)}

    def _needed(self, home: int, place: int, body: int) -> set[int]:
        around = self.around[body]
        while home not in around:
            home, place = self._over[home]
        if home == body:
            return {place}
        self.by_region[around[around.index(home) - 1]].outer.add(place)
        return set()

    def close(self, region: Region, num_bytes: int) -> TaskRef:
        """Put a body that is over in the one around it, as one task.

        Args:
            region: Of the body.
            num_bytes: Of what it carries and changes.
        """
        body = self.by_region[region.index]
        needs = tuple(sorted(body.outer))
        issues = (Instruction(Opcode.CALL, body.index),)
        task = Task(0.0, Lane.BOTH, needs, issues=issues, num_bytes=num_bytes)
        self._over[region.index] = body.parent, self.add(body.parent, task)
        return self._over[region.index]

    def takes(self, body: TaskBody, seconds: float) -> None:
        """Tell the body around one how long a run of it takes."""
        if body.region not in self._over:
            return
        parent, place = self._over[body.region]
        tasks = self.by_region[parent].tasks
        run_seconds = body.transfers.run_seconds(seconds)
        tasks[place] = tasks[place]._replace(seconds=run_seconds * body.trips)

    def scheduled(self) -> tuple[Body, ...]:
        """The schedule, once all bodies have their instructions."""
        return tuple(
            Body(
                parent=self.by_region[body.parent].index if body.parent >= 0 else -1,
                trips=body.trips,
                transfers=body.transfers,
                instructions=body.instructions,
            )
            for body in self.by_region.values()
        )
