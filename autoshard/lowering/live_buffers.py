"""The buffers of a decided plan: bytes, live range, memory space."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import NamedTuple

from autoshard.backends import LayoutPolicy
from autoshard.costing.tiles import tiled_in
from autoshard.encoding.device_room import DeviceRoom
from autoshard.encoding.encode import Encoder
from autoshard.encoding.encoded import Decoded, Encoded
from autoshard.encoding.memory_tags import PEELED, ROWS, UNWRITTEN, WORK, WRITTEN
from autoshard.graph.program import OpKind
from autoshard.lowering.issued_ranges import IssuedRanges
from autoshard.lowering.live_ranges import LiveRange, live_ranges, value_of
from autoshard.lowering.local_program import Buffer, Space
from autoshard.lowering.op_times import OpTimes
from autoshard.lowering.vmem_assignment import SplitBuffers, VmemAssignment
from autoshard.lowering.waiting_operands import WaitingOperands

_ALLOCATED_THROUGHOUT = {"argument": Space.ARGUMENT, "output": Space.OUTPUT}


class _Throughout(NamedTuple):
    """Results that are allocated throughout, in no argument's buffer, and written as they are kept.

    Args:
        makers: Ops that make them, and move none of their results for the caller.
        before: Memory terms of nodes that hold them until they are written.
    """

    makers: Set[int]
    before: Set[int]


def live_buffers(
    encoder: Encoder,
    encoded: Encoded,
    decoded: Decoded,
    choices: tuple[int, ...],
    starts: Mapping[tuple[int, int], int],
    times: OpTimes | None,
) -> tuple[tuple[Buffer, ...], WaitingOperands | None]:
    """Buffers in HBM, the largest first, then those in VMEM; and what waits there for matmuls.

    Args:
        encoder: Of the problem.
        encoded: The problem.
        decoded: The plan.
        choices: The plan as the solver says it.
        starts: By value and op, when an asynchronous collective starts to move the value for it.
        times: When ops run, if not in program order.
    """
    room = encoder.room
    outside = live_ranges(encoded, decoded, choices, room.indices)
    throughout = _throughout(room, encoded, decoded)
    outside = [one for one in outside if one.term not in throughout.before]
    buffers = encoder.buffers
    order: Sequence[int] = range(len(encoded.graph.ops))
    if times is None:
        outside = [one._replace(start=_started(encoded, one, starts)) for one in outside]
    else:
        issued = IssuedRanges(encoder, encoded, decoded, times, starts)
        outside = list(map(issued.of, outside))
        buffers, order = issued.buffers, times.order
    assignment = VmemAssignment.for_plan(room, encoded, decoded, buffers, order, outside, starts)
    split = SplitBuffers(in_hbm=outside) if assignment is None else assignment.split(outside)
    every = [
        *_buffers(throughout, encoded, decoded, order, split.in_hbm),
        *_buffers(throughout, encoded, decoded, order, split.in_vmem, Space.VMEM),
        *split.short_lived,
    ]
    waits = None
    if split.reads is not None:
        waits = WaitingOperands(room.graph, buffers, decoded, split.reads, room.vmem.behind)
    every.sort(key=lambda one: (one.space is Space.VMEM, _largest_first(one)))
    return tuple(every), waits


def _started(encoded: Encoded, one: LiveRange, starts: Mapping[tuple[int, int], int]) -> int:
    """When a live range starts: a resharded copy with the collective that makes it."""
    value, is_copy = value_of(encoded, one)
    return min(one.start, starts.get((value, one.start), one.start)) if is_copy else one.start


def _largest_first(one: Buffer) -> tuple[int, int, int, int, int]:
    return -one.num_bytes, one.start, one.stop, one.value, one.op


def host_bytes(encoder: Encoder, decoded: Decoded) -> int:
    """Bytes that a device has in host memory: stacks of loops, and what stands in none.

    A donated argument gives its buffer to what replaces it.
    """
    graph, owner = encoder.graph, encoder.buffers.owner
    given = {graph.arguments[place].results[0] for place in graph.donated}
    held = {
        owner[value]
        for value in graph.on_host
        if graph.maker(value).kind is OpKind.JOIN or not graph.is_in_loop(graph.maker(value).region)
    }
    return sum(
        encoder.room.held_bytes(graph.values[value], decoded.layouts[value])
        for value in held - given
    )


def tiled_arguments(encoded: Encoded, decoded: Decoded, tiling: LayoutPolicy) -> tuple[int, ...]:
    """Bytes that a device holds of each argument in its memory, with its padding."""
    found, graph = [], encoded.graph
    for op in graph.arguments:
        value = graph.values[op.results[0]]
        if value.index not in graph.on_host:
            found.append(tiled_in(encoded.parts, tiling, value, decoded.layouts[value.index]))
    return tuple(found)


def _throughout(room: DeviceRoom, encoded: Encoded, decoded: Decoded) -> _Throughout:
    before: dict[int, set[int]] = {}
    moved = set()
    for number, term in enumerate(encoded.problem.node_memory):
        if term.tag == UNWRITTEN:
            result = encoded.maker(term.node)
            (value,), (taken,) = result.operands, decoded.candidates[result.index].operands
            maker = room.graph.maker(room.buffers.owner[value]).index
            before.setdefault(maker, set()).add(number)
            if taken != decoded.layouts[value]:
                moved.add(maker)
    kept = before.keys() - moved
    return _Throughout(kept, {number for maker in kept for number in before[maker]})


def _buffers(
    throughout: _Throughout,
    encoded: Encoded,
    decoded: Decoded,
    order: Sequence[int],
    ranges: Iterable[LiveRange],
    space: Space = Space.HBM,
) -> Iterator[Buffer]:
    problem = encoded.problem
    num_nodes = len(problem.node_memory)
    for num_bytes, start, stop, number in ranges:
        if number < num_nodes:
            term = problem.node_memory[number]
            op = encoded.maker(term.node)
            value = (op.results or op.operands)[0]
            kind = "value"
            if decoded.candidates[op.index].streamed is not None and stop == start + 1:
                kind = "chunks"  # the result is read later than that
            elif encoded.is_argument(term):
                kind = "argument"
            elif op.kind is OpKind.ARGUMENT:
                kind = "copy"  # converted for its readers
            elif term.tag == WRITTEN and op.index in throughout.makers:
                kind = "output"
            elif term.tag in {PEELED, ROWS, WORK}:
                kind = "work"
        else:
            edge = problem.edges[problem.edge_memory[number - num_nodes].edge]
            value, kind = encoded.maker(edge.u).results[0], "copy"
            is_shared = edge.v >= len(encoded.ops)
            op = encoded.graph.ops[order[start]] if is_shared else encoded.maker(edge.v)
        yield Buffer(
            kind=kind,
            value=value,
            op=op.index,
            num_bytes=num_bytes,
            start=0 if kind == "output" else start,
            stop=stop,
            space=_ALLOCATED_THROUGHOUT.get(kind, space),
        )
