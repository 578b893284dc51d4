"""When ops run, where a compiler does not keep to program order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from autoshard.graph.program import Graph, OpKind
from autoshard.lowering.bodies import TaskBody
from autoshard.lowering.local_program import Opcode
from autoshard.lowering.schedule import Role


@dataclass(frozen=True, slots=True)
class OpTimes:
    """Points in time, as many as there are ops.

    Args:
        run: By op index, when it runs: each at a time of its own, the first op first.
        sums: By index of an op whose results are summed over devices, when that begins and when it
            is over.
        filled: By index of a scatter, when the zeros are written that it scatters into.
    """

    run: Mapping[int, int]
    sums: Mapping[int, tuple[int, int]]
    filled: Mapping[int, int]

    @property
    def order(self) -> tuple[int, ...]:
        """The op that runs at each time."""
        return tuple(self.run)


def op_times(graph: Graph, homes: Sequence[int], bodies: Mapping[int, TaskBody]) -> OpTimes:
    """When the ops of ordered bodies run.

    Args:
        graph: The program.
        homes: Per region, that of the body that it is scheduled in.
        bodies: By region.
    """
    clock = _Clock(graph, homes, bodies)
    clock.run(bodies[0])
    begun, over = clock.begun, clock.over
    return OpTimes(
        run={index: time for time, index in enumerate(clock.order)},
        sums={index: (time, over.get(index, time)) for index, time in begun.items()},
        filled=clock.filled,
    )


@dataclass(slots=True)
class _Clock:
    graph: Graph
    homes: Sequence[int]
    bodies: Mapping[int, TaskBody]
    order: list[int] = field(default_factory=list)
    begun: dict[int, int] = field(default_factory=dict)
    over: dict[int, int] = field(default_factory=dict)
    filled: dict[int, int] = field(default_factory=dict)
    _done: set[int] = field(default_factory=set)
    _tasked: set[int] = field(default_factory=set)  # ops that tasks make
    _ops: dict[int, list[int]] = field(default_factory=dict)  # by region of a body
    _called: dict[int, TaskBody] = field(default_factory=dict)  # by index of a body

    def __post_init__(self) -> None:
        members: defaultdict[int, list[int]] = defaultdict(list)
        for op in self.graph.ops:
            members[self.homes[op.region]].append(op.index)
        self._ops = members
        self._called = {body.index: body for body in self.bodies.values()}
        tasks = (task for body in self.bodies.values() for task in body.tasks)
        self._tasked = {task.op for task in tasks if task.role is Role.MAKES}

    def run(self, body: TaskBody) -> None:
        """Let the time of a body pass."""
        ops = self.graph.ops
        own = self._ops[body.region]
        for index in own:
            if ops[index].kind is OpKind.ARGUMENT:
                self._put(index)
        for place, is_over in body.issued:
            task = body.tasks[place]
            if task.role is Role.SUMS:
                (self.over if is_over else self.begun)[task.op] = len(self.order)
            elif task.role is Role.FILLS:
                self.filled[task.op] = len(self.order)
            elif task.role is Role.MAKES and ops[task.op].kind is not OpKind.RESULT:
                self._put(task.op)
            for opcode, target in task.issues:
                if opcode is Opcode.CALL and not is_over:
                    self.run(self._called[target])
        for index in own:
            self._put(index)

    def _put(self, index: int) -> None:
        """Run an op, after what of its body it reads that no task makes."""
        if index in self._done:
            return
        home = self.homes[self.graph.ops[index].region]
        stack = [index]
        while stack:
            left = self._left(stack[-1], home)
            if left is not None:
                stack.append(left)
                continue
            run = stack.pop()
            if run not in self._done:
                self._done.add(run)
                self.order.append(run)

    def _left(self, index: int, home: int) -> int | None:
        """The first op of a body, still to run, that an op reads and that no task makes."""
        ops, values = self.graph.ops, self.graph.values
        for value in ops[index].operands:
            maker = values[value].op
            if maker in self._tasked or maker in self._done or maker >= index:
                continue
            if self.homes[ops[maker].region] == home:
                return maker
        return None
