"""A decided plan as the program of one device: what the compiler makes of the choices."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf

from autoshard.costing.combined_calls import combined_calls
from autoshard.encoding.encode import Encoder
from autoshard.encoding.encoded import Decoded, Encoded
from autoshard.encoding.padded_rows import summed_with
from autoshard.graph.program import PRODUCTS, Graph, Op, OpClass, OpKind, Region
from autoshard.lowering.bodies import Bodies, TaskBody
from autoshard.lowering.kernel_order import AssumedKernel, KernelOrder, KernelOrders, kernel_orders
from autoshard.lowering.live_buffers import host_bytes, live_buffers, tiled_arguments
from autoshard.lowering.local_program import LocalProgram, Memory, Space
from autoshard.lowering.op_tasks import OpTasks
from autoshard.lowering.op_times import op_times
from autoshard.lowering.schedule import (
    Lane,
    Role,
    Task,
    issue_order,
    issued_in_turn,
    schedule,
    schedule_late,
)

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
    bodies = Bodies(encoded.graph)
    tasks = OpTasks(encoder, encoded, decoded, bodies)
    backend = encoder.costing.backend
    rows = summed_with(encoded.graph) if backend.layout.num_lanes > 1 else {}
    _Walk(encoded.graph, bodies, tasks, rows).run()
    program = LocalProgram(
        kernels=tuple(tasks.kernels),
        collectives=tuple(tasks.collectives),
        order=bodies.scheduled(),
    )
    times = None
    if backend.schedule.orders_for_memory:
        times = op_times(encoded.graph, bodies.homes, bodies.by_region)
    starts = program.starts(times.run if times else None)
    buffers, waits = live_buffers(encoder, encoded, decoded, choices, starts, times)
    argument_bytes = sum(one.num_bytes for one in buffers if one.space is Space.ARGUMENT)
    tables, is_heap = 0, backend.memory.allocates_in_schedule_order
    if is_heap:
        tiled = tiled_arguments(encoded, decoded, backend.layout)
        argument_bytes = sum(tiled)
        tables = backend.memory.tuple_index_bytes(tiled, encoder.graph.num_matmuls)
    return replace(
        program,
        kernels=program.kernels if waits is None else tuple(tasks.kernels_after(waits)),
        buffers=buffers,
        memory=Memory(
            argument_bytes=argument_bytes,
            table_bytes=tables,
            host_bytes=host_bytes(encoder, decoded),
            num_times=len(encoded.graph.ops),
            is_heap=is_heap,
            order=times.order if times else (),
        ),
    )


@dataclass(frozen=True, slots=True)
class _Walk:
    """Walks through a program: finds the tasks of all bodies, and schedules each.

    Args:
        graph: The program.
        bodies: Its bodies.
        tasks: Makes the tasks of ops.
        rows_summed_with: By gather of narrow rows, the last one whose sums are in the same call.
    """

    graph: Graph
    bodies: Bodies
    tasks: OpTasks
    rows_summed_with: Mapping[int, int]

    def run(self) -> None:
        """Go through all ops."""
        graph, bodies = self.graph, self.bodies
        exits = self._exits()
        open_bodies: list[Region] = []
        starting = sorted(
            (r for r in graph.regions if r.index in bodies.by_region),
            key=lambda r: (r.start, -r.stop, r.index),
        )
        first = 0
        for op in in_waiting_order(graph, self.tasks.waits_behind()):
            while open_bodies and open_bodies[-1].stop <= op.index:
                self._close(open_bodies.pop(), exits)
            while first < len(starting) and starting[first].start <= op.index:
                open_bodies.append(starting[first])
                first += 1
            if op.index in self.tasks.decoded.candidates:
                self.tasks.add(op)
        while len(open_bodies) > 1:
            self._close(open_bodies.pop(), exits)
        bodies.ends += (
            bodies.made[op.operands[0]] for op in graph.results if op.operands[0] in bodies.made
        )
        self._schedule()

    def _exits(self) -> dict[int, list[tuple[Op, int]]]:
        """By body, the operands of joins that are made in it and read outside."""
        found: dict[int, list[tuple[Op, int]]] = {}
        for op in self.graph.ops:
            if op.kind is not OpKind.JOIN or op.index not in self.tasks.decoded.candidates:
                continue
            around = self.bodies.around[self.bodies.homes[op.region]]
            for position, value in enumerate(op.operands):
                home = self.bodies.home_of[value]
                if home not in around:
                    found.setdefault(home, []).append((op, position))
        return found

    def _close(self, region: Region, exits: dict[int, list[tuple[Op, int]]]) -> None:
        """Put a body that is over in the one around it as one task."""
        for op, position in exits.get(region.index, ()):
            needs = self.tasks.read(op, position, region.index)
            self.bodies.ends += ((region.index, place) for place in needs)
        carries = [op for op, _ in exits.get(region.index, ()) if op.name == "while"]
        num_bytes = sum(map(self.tasks.written_bytes, carries))
        ref = self.bodies.close(region, num_bytes)
        for op in carries:
            self.bodies.made.update((value, ref) for value in op.results)

    def _schedule(self) -> None:
        """Schedule all bodies, inner ones first; one order is taken for all of them."""
        inner_first = tuple(reversed(self.bodies.by_region.values()))
        orders: dict[int, KernelOrders] = {}
        if self.tasks.costing.backend.schedule.orders_for_memory:
            held: dict[int, tuple[int, ...]] = {}
            for body in inner_first:
                orders[body.region] = self._orders(body, held)
                held[body.index] = orders[body.region].memory.held
        for body in inner_first:
            found = orders[body.region].issued(orders[0].memory.best) if orders else None
            self.bodies.takes(body, self._seconds(body, found))

    def _orders(self, body: TaskBody, called: Mapping[int, tuple[int, ...]]) -> KernelOrders:
        """The orders of a body, those that it calls being ordered."""
        policy = self.tasks.costing.backend.schedule
        self._combine(body)
        kept = [place for home, place in self.bodies.ends if home == body.region]
        latency = policy.collective_microseconds if policy.hides_latency else None
        return kernel_orders(body.tasks, kept, self._assumed, latency=latency, called=called)

    def _seconds(self, body: TaskBody, found: KernelOrder | None) -> float:
        """Seconds of one run of a body, its tasks issued in an order if there is one."""
        policy, tasks = self.tasks.costing.backend.schedule, body.tasks
        every_one_blocks = all(task.lane is not Lane.NETWORK for task in tasks)
        if found is not None:
            body.issued, body.instructions = found.tasks, found.instructions
            if policy.hides_latency:
                return schedule(tasks).seconds
            if every_one_blocks:
                tasks = [tasks[place] for place in found.turns]
            else:
                tasks = found.in_turn(tasks)
        if every_one_blocks:
            body.instructions, seconds = issued_in_turn(tasks)
            return seconds
        timeline = schedule_late(tasks) if policy.overlaps_matmuls_only else schedule(tasks)
        body.instructions = issue_order(tasks, timeline)
        return timeline.seconds

    def _combine(self, body: TaskBody) -> None:
        """Put sums, and all-gathers, into one call."""
        graph, keys = self.graph, dict[int, Hashable]()
        for place, task in enumerate(body.tasks):
            if task.lane is not Lane.NETWORK:
                continue
            sent = [self.tasks.collectives[one.target] for one in task.issues]
            if {one.kind for one in sent} - _COMBINED:
                continue
            value = sent[0].value if sent[0].value >= 0 else graph.ops[sent[0].op].results[0]
            keys[place] = graph.values[value].dtype, *((one.kind, one.axes) for one in sent)
        most = self.tasks.costing.backend.memory.combined_sum_bytes
        needs = [task.needs for task in body.tasks]
        num_bytes = [task.num_bytes for task in body.tasks]
        rows: dict[int, Hashable] = {
            place: self.rows_summed_with[task.op]
            for place, task in enumerate(body.tasks)
            if task.role is Role.SUMS and task.op in self.rows_summed_with
        }
        calls = dict(combined_calls(needs, num_bytes, keys, most))
        calls.update(combined_calls(needs, num_bytes, rows, inf))
        for place, call in calls.items():
            body.tasks[place] = body.tasks[place]._replace(call=call)

    def _assumed(self, task: Task) -> AssumedKernel:
        """The kernel of a task as XLA's schedulers estimate it."""
        matmul, convolution = self.tasks.costing.backend.schedule.assumed_microseconds
        op_class = self.graph.ops[task.op].op_class if task.role is Role.MAKES else None
        if op_class is OpClass.CONVOLUTION:
            return AssumedKernel(convolution, is_library_call=True)
        is_whole = task.lane is Lane.BOTH or op_class in PRODUCTS
        return AssumedKernel(matmul if is_whole else 1e6 * task.seconds)


def in_waiting_order(graph: Graph, behind: Mapping[int, int]) -> Iterator[Op]:
    """All ops, those that wait for a later one behind that, with what waits for them.

    Args:
        graph: The program.
        behind: By op, one that it runs with or after, and that waits for none of these.
    """
    held: list[Op] = []
    made, until = set[int](), -1
    for op in graph.ops:
        last = behind.get(op.index, -1)
        if last > op.index or not made.isdisjoint(op.operands):
            held.append(op)
            made.update(op.results)
            until = max(until, last)
            continue
        yield op
        if held and op.index >= until:
            yield from held
            held, made = [], set[int]()
    yield from held
