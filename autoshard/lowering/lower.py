"""A decided plan as the program of one device: what the compiler makes of the choices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from autoshard.encoding.encode import Encoder
from autoshard.encoding.encoded import Decoded, Encoded
from autoshard.encoding.padded_rows import summed_with
from autoshard.graph.program import Graph, Op, OpKind, Region
from autoshard.lowering.bodies import Bodies, TaskRef
from autoshard.lowering.body_schedules import schedule_bodies
from autoshard.lowering.live_buffers import host_bytes, live_buffers, tiled_arguments
from autoshard.lowering.local_program import LocalProgram, Memory, Space
from autoshard.lowering.op_tasks import OpTasks
from autoshard.lowering.op_times import op_times
from autoshard.lowering.schedule import Lane, Task


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
    _Walk(encoded.graph, bodies, tasks).run()
    schedule_bodies(encoded.graph, bodies, tasks, rows)
    program = LocalProgram(
        kernels=tuple(tasks.kernels),
        collectives=tuple(tasks.collectives),
        order=bodies.scheduled(),
    )
    times = None
    if backend.schedule.orders_for_memory:
        times = op_times(encoded.graph, bodies.homes, bodies.by_region)
    starts = program.starts(times.run if times else None)
    buffers = live_buffers(encoder, encoded, decoded, choices, starts, times)
    argument_bytes = sum(one.num_bytes for one in buffers if one.space is Space.ARGUMENT)
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
    """

    graph: Graph
    bodies: Bodies
    tasks: OpTasks

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
        for op in in_joining_order(graph, self.tasks.encoder.buffers.joined):
            while open_bodies and open_bodies[-1].stop <= op.index:
                self._close(open_bodies.pop(), exits)
            while first < len(starting) and starting[first].start <= op.index:
                open_bodies.append(starting[first])
                first += 1
            if op.index in self.tasks.decoded.candidates:
                self.tasks.add(op)
        while len(open_bodies) > 1:
            self._close(open_bodies.pop(), exits)
        bodies.ends += (self._end(op.operands[0]) for op in graph.results)

    def _end(self, value: int) -> TaskRef:
        """The task that makes a result; of a number, one that waits for what it is made of."""
        made = self.bodies.made.get(value)
        if made is not None:
            return made
        needs = tuple(sorted(self.bodies.needs(value, 0)))
        return 0, self.bodies.add(0, Task(0.0, Lane.COMPUTE, needs))

    def _exits(self) -> dict[int, list[tuple[Op, int]]]:
        """By body, the operands of joins that are made in it and read outside."""
        found: dict[int, list[tuple[Op, int]]] = {}
        for op in self.graph.ops:
            if op.kind is not OpKind.JOIN or op.index not in self.tasks.decoded.candidates:
                continue
            around = self.bodies.around[self.bodies.homes[op.region]]
            for position, value in enumerate(op.operands):
                home = self.bodies.home_of(value)
                if home not in around:
                    found.setdefault(home, []).append((op, position))
        return found

    def _close(self, region: Region, exits: dict[int, list[tuple[Op, int]]]) -> None:
        """Put a body that is over in the one around it as one task."""
        for op, position in exits.get(region.index, ()):
            needs = self.tasks.read(op, position, region.index)
            self.bodies.ends += ((region.index, place) for place in needs)
        carries = [op for op, _ in exits.get(region.index, ()) if op.name == "while"]
        body = self.bodies.by_region[region.index]
        fills = {op.index: self.tasks.fill(op, body.parent) for op in carries if self._fills(op)}
        body.outer.update(fills.values())
        changed = (self.tasks.written_bytes(op) for op in carries if op.index not in fills)
        parent, over = self.bodies.close(region, sum(changed))
        for op in carries:
            made = over
            if op.index in fills:  # the loop writes to the buffer that is filled before it
                filled = Task(0.0, Lane.COMPUTE, (fills[op.index], over), is_fused=True)
                made = self.bodies.add(parent, filled)
            self.bodies.made.update((value, (parent, made)) for value in op.results)

    def _fills(self, carry: Op) -> bool:
        """True where a kernel writes what a loop starts with: a tensor of one number."""
        first = self.graph.maker(carry.operands[0])
        return first.kind is OpKind.FREE and bool(self.tasks.written_bytes(carry))


def in_joining_order(graph: Graph, joined: Mapping[int, int]) -> Iterator[Op]:
    """All ops, those that join the kernel of a later one behind that, with what waits for them.

    Args:
        graph: The program.
        joined: By op, the one whose kernel it joins, which waits for none of them.
    """
    held: list[Op] = []
    made, until = set[int](), -1
    for op in graph.ops:
        kernel = joined.get(op.index, -1)
        if kernel > op.index or not made.isdisjoint(op.operands):
            held.append(op)
            made.update(op.results)
            until = max(until, kernel)
            continue
        yield op
        if held and op.index >= until:
            yield from held
            held, made = [], set[int]()
    yield from held
