"""A decided plan as the program of one device: what the compiler makes of the choices."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf

from autoshard.backends import SchedulePolicy
from autoshard.costing.combined_calls import combined_calls
from autoshard.costing.costing import Costing
from autoshard.encoding.encode import Encoder
from autoshard.encoding.encoded import Decoded, Encoded
from autoshard.encoding.hidden_communication import hidden_in_steps
from autoshard.encoding.shared_reads import reads_of
from autoshard.graph.op_traits import renames
from autoshard.graph.program import DEVICE_MEMORY, PRODUCTS, Op, OpClass, OpKind, Region
from autoshard.graph.scatters import is_into_zeros
from autoshard.layouts import Layout
from autoshard.lowering.collectives import Collectives, sharing
from autoshard.lowering.kernel_order import AssumedKernel, kernel_order
from autoshard.lowering.live_buffers import host_bytes, live_buffers, tiled_arguments
from autoshard.lowering.local_program import (
    Body,
    Collective,
    Instruction,
    Kernel,
    LocalProgram,
    Memory,
    Opcode,
    Space,
)
from autoshard.lowering.op_times import OpTimes, op_times
from autoshard.lowering.optimizer_outputs import OptimizerOutputs
from autoshard.lowering.reshard_steps import ReshardSteps, SharedStep
from autoshard.lowering.schedule import Lane, Role, Task, issue_order, schedule, schedule_late
from autoshard.lowering.task_body import TaskBody
from autoshard.reshard import Step, StepKind

_Ref = tuple[int, int]  # a body, and the place of a task in it
_COMBINED = frozenset({"all-gather", "all-reduce", "reduce-scatter"})


def lower(
    encoder: Encoder, encoded: Encoded, decoded: Decoded, choices: tuple[int, ...]
) -> LocalProgram:
    """The program of one device under a plan.

    Collectives that the backend runs asynchronously start when their operand is there, and are over
    before their first reader starts.

    Args:
        encoder: Of the problem.
        encoded: The problem.
        decoded: The plan.
        choices: The plan as the solver says it.
    """
    lowering = _Lowering(encoder, encoded, decoded)
    lowering.run()
    program = LocalProgram(
        kernels=tuple(lowering.kernels),
        collectives=tuple(lowering.collectives),
        order=lowering.order(),
    )
    times = lowering.times()
    starts = program.starts(times.run if times else None)
    buffers = live_buffers(encoder, encoded, decoded, choices, starts, times)
    argument_bytes = sum(one.num_bytes for one in buffers if one.space is Space.ARGUMENT)
    backend = encoder.costing.backend
    tables, is_heap = 0, backend.memory.allocates_in_schedule_order
    if is_heap:
        tiled = tiled_arguments(encoded, decoded, backend.layout)
        argument_bytes = sum(tiled)
        tables = backend.memory.tuple_index_bytes(tiled, encoder.graph.num_matmuls)
    return replace(
        program,
        buffers=buffers,
        memory=Memory(
            argument_bytes=argument_bytes,
            table_bytes=tables,
            host_bytes=host_bytes(encoder, decoded),
            num_times=len(encoded.graph.ops),
            is_heap=is_heap,
            order=tuple(times.run) if times else (),
        ),
    )


@dataclass(slots=True)
class _Lowering:
    encoder: Encoder
    encoded: Encoded
    decoded: Decoded
    kernels: list[Kernel] = field(default_factory=list)
    collectives: list[Collective] = field(default_factory=list)
    _made_of: Collectives = field(init=False)
    _steps: ReshardSteps = field(init=False)
    _outputs: OptimizerOutputs = field(init=False)
    _bodies: dict[int, TaskBody] = field(init=False)  # by region
    _homes: list[int] = field(init=False)  # by region, that of the body that it is scheduled in
    _around: dict[int, list[int]] = field(init=False)  # by body, it and those around, inner first
    _sent_bits: Mapping[SharedStep, int] = field(init=False)
    _covering: frozenset[int] = field(init=False)
    _made: dict[int, _Ref] = field(default_factory=dict)  # by value, the task that makes it
    _moved: dict[SharedStep, _Ref] = field(default_factory=dict)
    _loops: dict[int, _Ref] = field(default_factory=dict)  # by body that is over, its task
    _ends: list[_Ref] = field(default_factory=list)  # what is there until a body ends
    _zeros: dict[tuple[int, tuple[int, ...], str], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._made_of = Collectives(self.costing, self.encoded, self.decoded)
        self._steps = ReshardSteps(self.encoded, self.decoded)
        self._outputs = OptimizerOutputs.of(self.encoder, self.decoded)
        self._sent_bits = self._steps.sent_bits()
        self._covering = frozenset(self._find_covering())
        self._bodies, self._homes, self._around = {}, [], {}
        for region in self.encoded.graph.regions:
            if region.kind == "manual":
                self._homes.append(self._homes[region.parent])
                continue
            self._homes.append(region.index)
            parent = self._homes[region.parent] if region.parent >= 0 else -1
            repeat = self._bodies[parent].repeat if parent >= 0 else 1.0
            repeat *= region.trip_count
            place = len(self._bodies)
            self._bodies[region.index] = TaskBody(
                place, region.index, parent, region.trip_count, repeat
            )
            self._around[region.index] = [region.index, *self._around.get(parent, ())]

    def _find_covering(self) -> Iterator[int]:
        """Ops that collectives start beside."""
        every = not self._schedule_policy.overlaps_matmuls_only
        for op in self.encoded.graph.ops:
            if every or op.op_class in PRODUCTS:
                yield op.index
            made = self.decoded.candidates.get(op.index)
            if op.op_class in PRODUCTS and made and not (made.reduced or made.scattered):
                yield from self.encoder.buffers.computed_with.get(op.index, ())

    @property
    def costing(self) -> Costing:
        return self.encoder.costing

    @property
    def _schedule_policy(self) -> SchedulePolicy:
        return self.costing.backend.schedule

    def run(self) -> None:
        """Find the tasks of all bodies, and schedule each."""
        graph = self.encoded.graph
        exits = self._exits()
        open_bodies: list[Region] = []
        starting = sorted(
            (r for r in graph.regions if r.index in self._bodies),
            key=lambda r: (r.start, -r.stop, r.index),
        )
        first = 0
        for op in graph.ops:
            while open_bodies and open_bodies[-1].stop <= op.index:
                self._close(open_bodies.pop(), exits)
            while first < len(starting) and starting[first].start <= op.index:
                open_bodies.append(starting[first])
                first += 1
            if op.index in self.decoded.candidates:
                self._add(op)
        while len(open_bodies) > 1:
            self._close(open_bodies.pop(), exits)
        self._ends += (
            self._made[op.operands[0]] for op in graph.results if op.operands[0] in self._made
        )
        self._schedule(self._bodies[0])

    def times(self) -> OpTimes | None:
        """When ops run, if not in program order."""
        if not self._schedule_policy.orders_for_memory:
            return None
        return op_times(self.encoded.graph, self._homes, self._bodies)

    def order(self) -> tuple[Body, ...]:
        """The schedule, once all is found."""
        return tuple(
            Body(
                parent=self._bodies[body.parent].index if body.parent >= 0 else -1,
                trips=body.trips,
                host_seconds=max(body.to_and_from_host),
                instructions=body.instructions,
            )
            for body in self._bodies.values()
        )

    def _home_of(self, value: int) -> int:
        graph = self.encoded.graph
        return self._homes[graph.maker(value).region]

    # -- what runs ------------------------------------------------------------------------------

    def _add(self, op: Op) -> None:
        """The tasks of one op: what moves its operands, its work, its collectives."""
        candidate, graph = self.decoded.candidates[op.index], self.encoded.graph
        body = self._homes[op.region]
        if op.memory_kind:
            way = self._bodies[body].to_and_from_host
            way[op.memory_kind == DEVICE_MEMORY] += self._transfer_seconds(op)
        around = self._around[body]
        needs: set[int] = set()
        for position, value in enumerate(op.operands):
            if self._home_of(value) in around:
                needs.update(self._read(op, position, body))
        compute, sent = self.encoder.node_costs.seconds_of(op, candidate)
        compute += self._outputs.more_seconds(op)
        num_bytes = self._written_bytes(op, candidate.partial)
        if self.costing.backend.fusion.fills_scatters_early and is_into_zeros(graph, op):
            needs.add(self._fill(op, body, num_bytes))
            num_bytes = 0
        made = self._kernel(
            op,
            body,
            compute,
            needs,
            covers=op.index in self._covering,
            role=Role.MAKES,
            num_bytes=num_bytes,
            is_fused=self._is_fused(op),
        )
        collectives = self._made_of.of_op(op)
        if op.kind is OpKind.RESULT:
            self._ends.append((body, made))
        if not collectives:
            self._made.update((value, (body, made)) for value in op.results)
            return
        priced = list(sharing(collectives, sent))
        passed = hidden_in_steps(self.encoded.graph, self.costing, op, candidate)
        if passed > 0:  # chunks that are passed on while the matmul of others runs
            beside, priced = _split(priced, passed)
            sending = self._send(body, beside, needs, is_async=True)
            joined = Task(0.0, Lane.COMPUTE, _sorted({made, sending}), is_fused=True)
            made = self._task(body, joined)
        is_at_once = candidate.streamed is None and candidate.runs_per_sum in (1, inf)
        is_async = is_at_once and all(one.is_async for one in priced)
        made = self._send(
            body,
            priced,
            {made},
            is_async=is_async,
            num_bytes=self._written_bytes(op),
            op=op.index,
        )
        self._made.update((value, (body, made)) for value in op.results)

    def _fill(self, op: Op, body: int, num_bytes: int) -> int:
        """Write the zeros that an op scatters into; one kernel writes all of one type."""
        value = self.encoded.graph.values[op.results[0]]
        call = self._zeros.setdefault((body, value.shape, value.dtype), -1 - op.index)
        task = Task(0.0, Lane.COMPUTE, role=Role.FILLS, op=op.index, num_bytes=num_bytes, call=call)
        return self._task(body, task)

    def _transfer_seconds(self, op: Op) -> float:
        """Of bringing what a device has of a value to another memory."""
        host = self.costing.model.hardware.host
        value = self.encoded.graph.values[op.results[0]]
        layout = self.decoded.layouts[value.index]
        return self.encoder.room.held_bytes(value, layout) / host.bytes_per_second if host else 0.0

    def _read(self, op: Op, position: int, body: int) -> set[int]:
        """Move an operand to where an op wants it; the tasks it then waits for."""
        value, costs = op.operands[position], self.encoder.read_costs
        needs = self._needs(value, body)
        steps = self._steps.of(op, position)
        order = costs.orders.seconds(op, value)
        if not steps:
            if order is not None:
                place = self.encoder.tables.of(value).index[self.decoded.layouts[value]]
                needs = self._reread(op, position, body, float(order[place, place]), needs)
            return needs
        narrowed = costs.narrowing_seconds(op, position)
        copy = self.decoded.shared.get((op.index, position))
        is_sent = False
        taken: list[Step] = []
        for step in steps:
            is_first = step.kind is not StepKind.SLICE and (not is_sent or step.before == copy)
            is_sent = is_sent or is_first
            key = (value, step, op.region)  # serves every reader in a region, none outside it
            if key not in self._moved:
                taken.append(step)
                table = self.encoded.table(value, self._sent_bits[key])
                if narrowed is not None and is_first:
                    seconds = float(narrowed[table.index[step.before]])
                    needs = self._reread(op, position, body, seconds, needs)
                self._moved[key] = body, self._step(op, position, step, body, needs)
            home, place = self._moved[key]
            needs = {place} if home == body else set()
        if order is None or not taken:
            return needs
        index = self.encoder.tables.of(value).index  # copied once, at the end of the way
        copied = float(order[index[taken[0].before], index[taken[-1].after]])
        return self._reread(op, position, body, copied, needs)

    def _reread(
        self, op: Op, position: int, body: int, seconds: float, needs: set[int]
    ) -> set[int]:
        """What converts or copies an operand beside its move; the tasks to wait for then."""
        if not seconds:
            return needs
        seconds *= self._times(op, position, body)
        covers = not self._schedule_policy.overlaps_matmuls_only
        return {self._kernel(op, body, seconds, needs, covers=covers)}

    def _times(self, op: Op, position: int, body: int) -> float:
        """How often an op reads an operand in one run of a body."""
        repeat = self._bodies[body].repeat
        return reads_of(op, position) / repeat if repeat else 1.0

    def _step(self, op: Op, position: int, step: Step, body: int, needs: set[int]) -> int:
        """One step of a reshard: the cut is a kernel, everything else a collective."""
        value = op.operands[position]
        bits = self._sent_bits[value, step, op.region]
        seconds = self.encoded.table(value, bits).step_seconds(step)
        times = self._times(op, position, body)
        made = self.encoded.graph.values[value]
        num_bytes = self.encoder.room.held_bytes(made, step.after)
        if step.kind is StepKind.SLICE:
            covers = not self._schedule_policy.overlaps_matmuls_only
            return self._kernel(
                op, body, seconds * times, needs, covers=covers, num_bytes=num_bytes
            )
        found = sharing(self._made_of.of_step(op, value, step, bits), seconds)
        return self._send(
            body,
            [replace(one, count=one.count * times) for one in found],
            needs,
            is_async=self._schedule_policy.is_async(step.kind.value),
            num_bytes=num_bytes,
        )

    def _written_bytes(self, op: Op, partial: Layout | None = None) -> int:
        """Of the buffers that an op writes, before its results are summed or after."""
        buffers, graph = self.encoder.buffers, self.encoded.graph
        return sum(
            self.encoder.room.held_bytes(
                graph.values[value], partial or self.decoded.layouts[value]
            )
            for value in op.results
            if buffers.is_stored[value] and buffers.owner[value] == value
        )

    def _is_fused(self, op: Op) -> bool:
        """True for an op that its readers compute, or that renames."""
        stored = self.encoder.buffers.is_stored
        return renames(op) or not any(stored[value] for value in op.results)

    def _kernel(
        self,
        op: Op,
        body: int,
        seconds: float,
        needs: Iterable[int],
        *,
        covers: bool,
        role: Role = Role.MOVES,
        num_bytes: int = 0,
        is_fused: bool = False,
    ) -> int:
        seconds = max(0.0, seconds)
        issues: tuple[Instruction, ...] = ()
        if seconds:
            issues = (Instruction(Opcode.KERNEL, len(self.kernels)),)
            self.kernels.append(
                Kernel(
                    name=op.name,
                    op=op.index,
                    source=op.source,
                    body=self._bodies[body].index,
                    seconds=seconds,
                    overlaps=covers,
                    traffic_seconds=seconds,
                )
            )
        needed = _sorted(needs)
        task = Task(
            seconds, Lane.COMPUTE, needed, covers, issues, role, op.index, num_bytes, is_fused
        )
        return self._task(body, task)

    def _send(
        self,
        body: int,
        found: Iterable[Collective],
        needs: Iterable[int],
        *,
        is_async: bool,
        num_bytes: int = 0,
        op: int = -1,
    ) -> int:
        """Collectives that run one after another, as one task; of an op, those that sum."""
        first = len(self.collectives)
        index = self._bodies[body].index
        self.collectives += [replace(one, is_async=is_async, body=index) for one in found]
        sent = self.collectives[first:]
        issues = tuple(Instruction(Opcode.START, first + place) for place in range(len(sent)))
        seconds = sum(one.seconds * one.count for one in sent)
        task = Task(
            seconds,
            Lane.NETWORK if is_async else Lane.BOTH,
            _sorted(needs),
            issues=issues,
            role=Role.MOVES if op < 0 else Role.SUMS,
            op=op,
            num_bytes=num_bytes,
        )
        return self._task(body, task)

    def _task(self, body: int, task: Task) -> int:
        tasks = self._bodies[body].tasks
        tasks.append(task)
        return len(tasks) - 1

    # -- bodies in bodies -----------------------------------------------------------------------

    def _needs(self, value: int, body: int) -> set[int]:
        """Tasks of a body that a value read there waits for; what lies outside, its body does."""
        ref = self._made.get(value)
        if ref is None:
            return set()
        around = self._around[body]
        home, place = ref
        while home not in around:
            home, place = self._loops[home]
        if home == body:
            return {place}
        self._bodies[around[around.index(home) - 1]].outer.add(place)
        return set()

    def _exits(self) -> dict[int, list[tuple[Op, int]]]:
        """By body, the operands of joins that are made in it and read outside."""
        found: dict[int, list[tuple[Op, int]]] = {}
        for op in self.encoded.graph.ops:
            if op.kind is not OpKind.JOIN or op.index not in self.decoded.candidates:
                continue
            around = self._around[self._homes[op.region]]
            for position, value in enumerate(op.operands):
                home = self._home_of(value)
                if home not in around:
                    found.setdefault(home, []).append((op, position))
        return found

    def _close(self, region: Region, exits: dict[int, list[tuple[Op, int]]]) -> None:
        """Schedule a body that is over, and put it in the one around it as one task."""
        body = self._bodies[region.index]
        for op, position in exits.get(region.index, ()):
            needs = self._read(op, position, region.index)
            self._ends += ((region.index, place) for place in needs)
        seconds = self._schedule(body) * body.trips
        issues = (Instruction(Opcode.CALL, body.index),)
        task = Task(seconds, Lane.BOTH, _sorted(body.outer), issues=issues)
        place = self._task(body.parent, task)
        self._loops[region.index] = (body.parent, place)
        if region.kind == "loop":
            for op, _ in exits.get(region.index, ()):
                if op.name == "while":
                    self._made.update((value, (body.parent, place)) for value in op.results)

    def _schedule(self, body: TaskBody) -> float:
        """Seconds of one run of a body."""
        policy = self._schedule_policy
        if policy.orders_for_memory:
            self._combine(body)
            kept = frozenset(place for home, place in self._ends if home == body.region)
            latency = policy.collective_microseconds if policy.overlaps else None
            found = kernel_order(body.tasks, kept, self._assumed, latency=latency)
            body.issued, body.instructions = found.tasks, found.instructions
            return max(schedule(body.tasks).seconds, *body.to_and_from_host)
        is_late = policy.overlaps_matmuls_only
        timeline = schedule_late(body.tasks) if is_late else schedule(body.tasks)
        body.instructions = issue_order(body.tasks, timeline)
        return max(timeline.seconds, *body.to_and_from_host)

    def _combine(self, body: TaskBody) -> None:
        """Put sums, and all-gathers, into one call."""
        graph, keys = self.encoded.graph, dict[int, Hashable]()
        for place, task in enumerate(body.tasks):
            if task.lane is not Lane.NETWORK:
                continue
            sent = [self.collectives[one.target] for one in task.issues]
            if {one.kind for one in sent} - _COMBINED:
                continue
            value = sent[0].value if sent[0].value >= 0 else graph.ops[sent[0].op].results[0]
            keys[place] = graph.values[value].dtype, *((one.kind, one.axes) for one in sent)
        most = self.costing.backend.memory.combined_sum_bytes
        needs = [task.needs for task in body.tasks]
        num_bytes = [task.num_bytes for task in body.tasks]
        for place, call in combined_calls(needs, num_bytes, keys, most).items():
            body.tasks[place] = replace(body.tasks[place], call=call)

    def _assumed(self, task: Task) -> AssumedKernel:
        """The kernel of a task as XLA's schedulers estimate it."""
        matmul, convolution = self._schedule_policy.assumed_microseconds
        op_class = self.encoded.graph.ops[task.op].op_class if task.role is Role.MAKES else None
        if op_class is OpClass.CONVOLUTION:
            return AssumedKernel(convolution, is_library_call=True)
        is_whole = task.lane is Lane.BOTH or op_class in PRODUCTS
        return AssumedKernel(matmul if is_whole else 1e6 * task.seconds)


def _sorted(needs: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(needs))


def _split(
    collectives: Iterable[Collective], passed: float
) -> tuple[list[Collective], list[Collective]]:
    """Runs of a collective matmul's messages that take so many seconds, and all others.

    Args:
        collectives: Those that may run beside the matmul are asynchronous.
        passed: Seconds of them that do.
    """
    found = list(collectives)
    shifts = sum(one.seconds * one.count for one in found if one.is_async)
    share = min(1.0, passed / shifts) if shifts else 0.0
    beside = [replace(one, count=one.count * share) for one in found if one.is_async]
    after = [
        replace(one, count=one.count * (1 - share)) if one.is_async else one
        for one in found
        if not one.is_async or share < 1
    ]
    return beside, after
