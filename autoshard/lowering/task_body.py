"""A stretch of ops that is scheduled by itself, as tasks."""

from __future__ import annotations

from dataclasses import dataclass, field

from autoshard.lowering.kernel_order import Issued
from autoshard.lowering.local_program import Instruction
from autoshard.lowering.schedule import Task


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
    issued: tuple[Issued, ...] = ()
    instructions: tuple[Instruction, ...] = ()
