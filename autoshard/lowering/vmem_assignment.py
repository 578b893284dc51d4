"""Buffers of a plan in VMEM: what may be there, and what memory space assignment puts there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import numpy.typing as npt

from autoshard.candidates.candidate import Candidate
from autoshard.costing.tiles import tiled_in
from autoshard.encoding.device_room import DeviceRoom
from autoshard.encoding.encoded import Decoded, Encoded
from autoshard.encoding.memory_tags import PEELED
from autoshard.encoding.padded_rows import copied_from, padded_row_bytes
from autoshard.graph.buffer_reads import buffer_reads
from autoshard.graph.buffers import Buffers, read_stop
from autoshard.graph.dataflow import trace_forward
from autoshard.graph.op_traits import renames
from autoshard.graph.program import PRODUCTS, Graph, Op, OpClass, OpKind, Region
from autoshard.graph.row_lookups import takes_rows
from autoshard.graph.scatters import adds_elements
from autoshard.layouts import Layout
from autoshard.lowering.live_ranges import LiveRange, is_argument, value_of
from autoshard.lowering.local_program import Buffer, Space
from autoshard.lowering.memory_space_assignment import Interval, Machine, Read, assign
from solvers import EdgeMemory, NodeMemory

IntArray = npt.NDArray[np.int64]

_MADE = (OpKind.COMPUTE, OpKind.JOIN)

_TRIPS = 5.0
"""Runs of a loop's body, any loop's. Source: openxla/xla, `xla_while_execution_count`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitBuffers:
    """Buffers by the memory that they are in.

    Args:
        in_hbm: Memory rows that are in HBM, and from when on.
        in_vmem: Memory rows in VMEM alone.
        short_lived: All others, in either.
        reads: By value, and whether it is a resharded copy of it, reads that find it in VMEM.
    """

    in_hbm: Sequence[LiveRange]
    in_vmem: Sequence[LiveRange] = ()
    short_lived: Sequence[Buffer] = ()
    reads: Mapping[tuple[int, bool], Sequence[Read]] | None = None


@dataclass(frozen=True, slots=True)
class VmemAssignment:
    """Memory terms of a plan that may be in VMEM, and its capacity.

    Args:
        buffers: When they are live, at the times at which ops run.
        order: The op that runs at each time.
        hbm_only: Values that are not in VMEM.
        short_lived: Buffers that no memory row holds.
        reads: Per value, when its buffer is read.
        spans: Per region, the first and the last time at which an op in it runs.
    """

    room: DeviceRoom
    encoded: Encoded
    decoded: Decoded
    buffers: Buffers
    order: Sequence[int]
    hbm_only: Set[int]
    short_lived: tuple[Buffer, ...]
    reads: Sequence[Set[int]]
    spans: Sequence[tuple[int, int]]

    @classmethod
    def for_plan(
        cls,
        room: DeviceRoom,
        encoded: Encoded,
        decoded: Decoded,
        buffers: Buffers,
        order: Sequence[int],
        ranges: Sequence[LiveRange],
        starts: Mapping[tuple[int, int], int],
    ) -> VmemAssignment | None:
        """None on machines where no temporary is in VMEM."""
        if not room.vmem.holds_copies:
            return None
        temporaries = (
            *_values(room, buffers, decoded),
            *_copies(room, buffers, encoded, decoded, starts),
        )
        # Matmuls that are computed with all their readers have no buffer unless they are summed.
        known = {value_of(encoded, one) for one in ranges}
        known |= {(value, False) for value in room.buffers.unless_summed}
        bits = room.written_bits
        short = [
            _as_written(room.graph, one, bits)
            for one in temporaries
            if (one.value, one.kind == "copy") not in known
        ]
        short += _row_copies(room, buffers, decoded)
        return cls(
            room=room,
            encoded=encoded,
            decoded=decoded,
            buffers=buffers,
            order=order,
            hbm_only=_at_the_end(room) | _on_their_way(room.graph),
            short_lived=tuple(short),
            reads=buffer_reads(room.graph, buffers)[0],
            spans=[_span(buffers, region) for region in room.graph.regions],
        )

    def split(self, ranges: Sequence[LiveRange]) -> SplitBuffers:
        """Memory rows and short-lived buffers by their memory, and the reads that VMEM serves."""
        may_hold = [one for one in ranges if self._may_hold(one)]
        own, overhead = [value_of(self.encoded, one) for one in may_hold], self.room.overhead
        arguments = dict(self._arguments(ranges))
        buffers = [
            *own,
            *((one.value, one.kind == "copy") for one in self.short_lived),
            *((value, False) for value in arguments),
        ]
        intervals = [
            *(
                self._interval(*buffer, round(one.num_bytes / overhead), one.start, one.stop)
                for buffer, one in zip(own, may_hold, strict=True)
            ),
            *(
                self._interval(one.value, one.kind == "copy", one.num_bytes, one.start, one.stop)
                for one in self.short_lived
            ),
            *arguments.values(),
        ]
        found = assign(intervals, self._machine())
        of_rows, of_short = found[: len(may_hold)], found[len(may_hold) :]
        starts = {row: one.in_hbm for row, one in zip(may_hold, of_rows, strict=True)}
        reads: dict[tuple[int, bool], list[Read]] = {}
        for buffer, assigned in zip(buffers, found, strict=True):
            reads.setdefault(buffer, []).extend(assigned.in_vmem)
        return SplitBuffers(
            in_hbm=[
                one._replace(start=start)
                for one in ranges
                if (start := starts.get(one, one.start)) is not None
            ],
            in_vmem=[one for one in may_hold if starts[one] is None],
            short_lived=[
                one if there.in_hbm is None else replace(one, start=there.in_hbm, space=Space.HBM)
                for one, there in zip(self.short_lived, of_short, strict=False)
            ],
            reads=reads,
        )

    def _arguments(self, ranges: Iterable[LiveRange]) -> Iterator[tuple[int, Interval]]:
        """Arguments of the program; of those that matmuls alone read, the largest is there first.

        Source: openxla/xla, `FindCrossProgramPrefetchCandidates` in
        `memory_space_assignment/algorithm.cc`.
        """
        graph = self.room.graph
        donated = {graph.arguments[place].results[0] for place in graph.donated}
        held = {
            self.encoded.maker(self.encoded.problem.node_memory[one.term].node).results[0]: one
            for one in ranges
            if is_argument(self.encoded, one)
        }
        fitting = [
            (one.num_bytes, value)
            for value, one in held.items()
            if one.num_bytes <= self.room.vmem.capacity
            and value not in donated
            and self._is_read_by_matmuls(value)
        ]
        _, first = max(fitting, default=(0, -1))
        for value, one in held.items():
            found = self._interval(value, False, one.num_bytes, 0, len(graph.ops))
            yield value, found._replace(is_argument=True, is_there_before=value == first)

    def _is_read_by_matmuls(self, value: int) -> bool:
        """True for an argument that matmuls alone read, as it is and in no loop."""
        readers = trace_forward(self.room.graph, value, renames)
        return bool(readers) and all(
            reader.kind is OpKind.COMPUTE
            and reader.op_class in PRODUCTS
            and reader.region == 0
            and all(
                self.decoded.candidates[reader.index].operands[place] == self.decoded.layouts[read]
                for place, read in enumerate(reader.operands)
                if self.room.buffers.owner[read] == value
            )
            for reader in readers
        )

    def _machine(self) -> Machine:
        graph, costing = self.room.graph, self.room.costing
        arithmetic = np.zeros(len(graph.ops))
        per_byte = 1.0 / costing.model.hardware.memory.bytes_per_second
        for index, candidate in self.decoded.candidates.items():
            op = graph.ops[index]
            looked_up = per_byte * self._slow_bytes(op, candidate)
            time = self.buffers.time_of(index)
            arithmetic[time] += looked_up or costing.arithmetic_seconds(graph, op, candidate)
        return Machine(
            vmem_bytes=self.room.vmem.capacity,
            copy_seconds_per_byte=per_byte,
            longest_unread=self.room.backend.memory.most_unread_bytes * per_byte,
            repeat=np.array([_TRIPS ** graph.num_loops(graph.ops[i].region) for i in self.order]),
            arithmetic=arithmetic,
        )

    def _slow_bytes(self, op: Op, candidate: Candidate) -> float:
        """Bytes that HBM moves in the time that a gather or scatter takes; 0 of other ops."""
        graph, policy = self.room.graph, self.room.backend.memory
        if adds_elements(graph, op):
            return policy.element_scatter_slowdown * self._row_by_row_bytes(op, candidate)
        if not takes_rows(graph, op):
            return 0.0
        made = candidate.partial or candidate.results[0]
        into = self.room.held_bytes(graph.values[op.results[0]], made)
        taken = self.room.held_bytes(graph.values[op.operands[-1]], candidate.operands[-1])
        is_gather = op.op_class is OpClass.GATHER
        rows = graph.values[op.results[0] if is_gather else op.operands[-1]]
        if prod(rows.shape[:-1]) != prod(graph.values[op.operands[1]].shape):
            return 0.0  # an index takes several rows
        gather, scatter = policy.lookup_slowdowns
        if is_gather:
            return gather * into
        return scatter * taken if into <= policy.unsorted_scatter_bytes else 0.0

    def _row_by_row_bytes(self, op: Op, candidate: Candidate) -> int:
        """Of the updates of a scatter, in whole tiles of their last two dimensions."""
        updates = self.room.graph.values[op.operands[-1]]
        num_dims = len(updates.shape)
        orders = ((num_dims - 2, num_dims - 1),) if num_dims > 1 else None
        tiling, layout = self.room.backend.layout, candidate.operands[-1]
        return tiled_in(self.room.costing.parts, tiling, updates, layout, orders=orders)

    def _interval(
        self, value: int, is_copy: bool, num_bytes: int, start: int, stop: int
    ) -> Interval:
        """A buffer with the reads of a value while it is live; of a copy, when it is made too."""
        graph = self.room.graph
        own = self._run_at(min(start, len(graph.ops) - 1)).region
        reads = {
            self._at_level(value, time, own)
            for time in self.reads[value]
            if start - is_copy < time < stop and self._run_at(time).kind is not OpKind.JOIN
        }
        last = max(start, min(stop, len(graph.ops)) - 1)
        return Interval(num_bytes, start, stop, tuple(sorted(reads)) or (Read(last, last, last),))

    def _at_level(self, value: int, time: int, region: int) -> Read:
        """A read at one time; in a loop that a region is not in, one while that runs.

        A loop reads one slice in each run of what has as many as there are runs.
        """
        regions = self.room.graph.regions
        outer = set()
        while region >= 0:
            outer.add(region)
            region = regions[region].parent
        inner = self._run_at(time).region
        found, num_slices = Read(time, time, time), (*self.room.graph.values[value].shape, 1)[0]
        while inner not in outer:
            loop = regions[inner]
            is_stack = loop.trip_count == num_slices > 1
            begin, end = self.spans[inner]
            found = Read(begin, end, time, 1 / num_slices if is_stack else 1.0)
            inner = loop.parent
        return found

    def _run_at(self, time: int) -> Op:
        return self.room.graph.ops[self.order[time]]

    def _may_hold(self, one: LiveRange) -> bool:
        if is_argument(self.encoded, one):
            return False
        problem = self.encoded.problem
        place = one.term - len(problem.node_memory)
        if place >= 0:
            return self.has_copy(problem.edge_memory[place])
        return self.has_value(problem.node_memory[one.term])

    def has_value(self, term: NodeMemory) -> bool:
        """A value may be in VMEM: no argument, no result."""
        op = self.encoded.maker(term.node)
        is_here = op.kind in _MADE and term.tag != PEELED
        return is_here and self.hbm_only.isdisjoint(op.results)

    def has_copy(self, copy: EdgeMemory) -> bool:
        """A resharded copy may be in VMEM: none for results."""
        edge = self.encoded.problem.edges[copy.edge]
        is_shared = edge.v >= len(self.encoded.ops)
        reader = self.encoded.graph.ops[copy.start] if is_shared else self.encoded.maker(edge.v)
        return reader.kind in _MADE


def _on_their_way(graph: Graph) -> Set[int]:
    """Values that come from host memory or go there: links end in HBM."""
    moves = [op for op in graph.ops if graph.is_transfer(op)]
    return {value for op in moves for value in (*op.operands, *op.results)}


def _at_the_end(room: DeviceRoom) -> Set[int]:
    """Values that end as results where they are made."""
    found = {room.buffers.owner[value] for op in room.graph.results for value in op.operands}
    return found - room.beside


def _span(buffers: Buffers, region: Region) -> tuple[int, int]:
    """The first and the last time at which an op of a region, or of one inside it, runs."""
    times = [buffers.time_of(index) for index in range(region.start, region.stop)]
    return min(times, default=-1), max(times, default=-1)


def _values(room: DeviceRoom, buffers: Buffers, decoded: Decoded) -> Iterator[Buffer]:
    """All that ops make, wherever it is."""
    for value in room.graph.values:
        start, stop = buffers.intervals[value.index]
        if room.graph.maker(value.index).kind is OpKind.ARGUMENT or value.index in room.reused:
            continue
        if stop > start:
            num_bytes = room.held_bytes(value, decoded.layouts[value.index])
            yield _in_vmem("value", value.index, value.op, num_bytes, start, stop)


def _copies(
    room: DeviceRoom,
    buffers: Buffers,
    encoded: Encoded,
    decoded: Decoded,
    starts: Mapping[tuple[int, int], int],
) -> Iterator[Buffer]:
    """All copies that are resharded for ops."""
    found: dict[tuple[int, Layout, int], tuple[int, int, int]] = {}
    for op in encoded.graph.ops:
        if op.index not in decoded.candidates or op.kind is not OpKind.COMPUTE:
            continue
        run, stop = buffers.time_of(op.index), read_stop(room.graph, buffers, op)
        for position, value in enumerate(op.operands):
            layout = decoded.candidates[op.index].operands[position]
            if layout != decoded.layouts[value]:
                key = (value, layout, encoded.read_bits.to(op, position))
                start = min(run, starts.get((value, op.index), run))
                known = found.get(key, (start, stop, op.index))
                found[key] = min(known[0], start), max(known[1], stop), known[2]
    for (value, layout, bits), (start, stop, index) in found.items():
        num_bytes = room.held_bytes(room.graph.values[value], layout, bits)
        yield _in_vmem("copy", value, index, num_bytes, start, stop)


def _row_copies(room: DeviceRoom, buffers: Buffers, decoded: Decoded) -> Iterator[Buffer]:
    """Padded rows that look-ups copy, those of tables before the first look-up."""
    graph, lanes, parts = room.graph, room.backend.layout.num_lanes, room.costing.parts
    for index, candidate in decoded.candidates.items():
        op, run = graph.ops[index], buffers.time_of(index)
        for value, held in padded_row_bytes(graph, parts, op, (candidate,), lanes, room.rows):
            if 0 < held[0] <= room.vmem.capacity:
                start = copied_from(op, value, room.tables, buffers.time_of)
                yield _in_vmem("copy", value, index, int(held[0]), start, run + 1)


def _as_written(graph: Graph, one: Buffer, bits: Mapping[int, int]) -> Buffer:
    """The buffer of a value, in narrower elements where it is written in such."""
    if one.kind == "copy" or one.value not in bits:
        return one
    return replace(one, num_bytes=one.num_bytes * bits[one.value] // graph.values[one.value].bits)


def _in_vmem(kind: str, value: int, op: int, num_bytes: int, start: int, stop: int) -> Buffer:
    return Buffer(
        kind=kind,
        value=value,
        op=op,
        num_bytes=num_bytes,
        start=start,
        stop=stop,
        space=Space.VMEM,
    )
