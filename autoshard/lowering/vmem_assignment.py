"""Buffers that XLA keeps in VMEM: all temporaries if they fit, else those live the shortest.

What is read again soon has room before the rest. Its memory rows leave it out of HBM; what finds no
room in VMEM for all of its time is in HBM none the less.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np
import numpy.typing as npt

from autoshard.costing.read_on_chip import brought_arguments
from autoshard.encoding.device_room import DeviceRoom
from autoshard.encoding.encoded import Decoded, Encoded
from autoshard.graph.buffers import read_stop
from autoshard.graph.images import images_of
from autoshard.graph.program import Graph, OpClass, OpKind
from autoshard.graph.row_lookups import takes_rows
from autoshard.layouts import Layout
from autoshard.lowering.live_ranges import LiveRange, is_argument, largest_first, value_of
from autoshard.lowering.local_program import Buffer, Space
from solvers import EdgeMemory, NodeMemory

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class VmemAssignment:
    """Memory terms of a plan that may be in VMEM, and its capacity.

    Args:
        room: Of the device.
        encoded: The problem.
        hbm_only: Values that are not in VMEM.
        holds_all: All temporaries fit: what loops carry is in VMEM too.
        holds_states: All arguments fit besides while updates run: what these read is in VMEM too.
        num_bytes: Capacity for temporaries: what is left beside the arguments that products read
            there.
        beside_arguments: Capacity at each op beside the arguments that are in VMEM for matmuls
            then: `int64[num_ops + 2]`.
        live: Bytes of all temporaries at each op, in VMEM or HBM: `int64[num_ops + 2]`.
        short_lived: Those that are read again soon, which no memory row holds.
    """

    room: DeviceRoom
    encoded: Encoded
    hbm_only: Set[int]
    holds_all: bool
    holds_states: bool
    num_bytes: int
    beside_arguments: IntArray
    live: IntArray
    short_lived: tuple[Buffer, ...]

    @classmethod
    def for_plan(
        cls,
        room: DeviceRoom,
        encoded: Encoded,
        decoded: Decoded,
        choices: Sequence[int],
        ranges: Sequence[LiveRange],
    ) -> VmemAssignment | None:
        """None where no temporary is in VMEM.

        So it is on most machines, and where convolutions run space-to-batch: these take more of it
        than can be told (a U-Net, 158 MB in HBM of 50 that are live at once).
        """
        on_chip = room.on_chip
        if not on_chip.moved:
            return None
        convolutions = [op for op in room.graph.ops if images_of(op)]
        cuts = room.costing.cuts_images
        if any(cuts(room.graph, op, decoded.candidates[op.index]) for op in convolutions):
            return None
        arguments = _argument_bytes(encoded, choices)
        brought = brought_arguments(room.graph, room.buffers)
        num_bytes = max(0, on_chip.room - sum(arguments.get(value, 0) for value in brought))
        temporaries = (*_values(room, decoded), *_copies(room, encoded, decoded))
        live = _live_at(temporaries, len(room.graph.ops))
        beside_states = on_chip.room - sum(arguments.values())
        has_room = _most_in_updates(room, live) <= beside_states
        holds_all = int(live.max()) <= num_bytes
        holds_states = has_room and holds_all
        owner = room.buffers.owner
        if holds_all:
            hbm_only = {owner[op.operands[0]] for op in encoded.graph.results}
        else:
            hbm_only = {value for value, is_out in enumerate(on_chip.kept_out) if is_out}
        if not holds_states:
            hbm_only |= {owner[v] for i in on_chip.updates for v in room.graph.ops[i].operands}
            hbm_only -= _scattered_for_updates(room)
        # Matmuls that are computed with all their readers have no buffer unless they are summed.
        known = {value_of(encoded, one) for one in ranges}
        known |= {(value, False) for value in room.buffers.unless_summed}
        bits = encoded.read_bits.written(room.buffers.with_products)
        short = [
            _as_written(room.graph, one, bits)
            for one in temporaries
            if (one.value, one.kind == "copy") not in known
        ]
        return cls(
            room,
            encoded,
            hbm_only,
            holds_all,
            holds_states,
            num_bytes,
            on_chip.room - _brought_at(room, brought, arguments),
            live,
            tuple(short),
        )

    def resident(self, ranges: Sequence[LiveRange]) -> tuple[set[LiveRange], set[Buffer]]:
        """Those that are in VMEM: the shortest live ranges are placed first.

        Others are placed beside all short-lived buffers, also where these have no room together.

        Args:
            ranges: What memory rows hold.

        Returns:
            Of these, and of the short-lived buffers, those that are in VMEM.
        """
        left = self.beside_arguments.copy()
        short = sorted(self.short_lived, key=lambda one: (one.stop - one.start, -one.num_bytes))
        soon = {one for one in short if _takes(left, one.start, one.stop, one.num_bytes)}
        temporaries = [one for one in ranges if not is_argument(self.encoded, one)]
        counted = _live_at(temporaries, len(self.live) - 2)
        left = self.num_bytes - np.maximum(self.live - counted, 0)
        others = sorted(temporaries, key=lambda one: (one.stop - one.start, largest_first(one)))
        return {
            one
            for one in others
            if self._may_hold(one) and _takes(left, one.start, one.stop, one.num_bytes)
        }, soon

    def _may_hold(self, one: LiveRange) -> bool:
        problem = self.encoded.problem
        place = one.term - len(problem.node_memory)
        if place >= 0:
            return self.has_copy(problem.edge_memory[place])
        return self.has_value(problem.node_memory[one.term])

    def has_value(self, term: NodeMemory) -> bool:
        """A value may be in VMEM: no argument, no result; what loops carry if all fit."""
        op = self.encoded.maker(term.node)
        is_made = op.kind is OpKind.COMPUTE or (self.holds_all and op.kind is OpKind.JOIN)
        return is_made and self.hbm_only.isdisjoint(op.results)

    def has_copy(self, copy: EdgeMemory) -> bool:
        """A resharded copy may be in VMEM: none for results or updates."""
        edge = self.encoded.problem.edges[copy.edge]
        is_shared = edge.v >= len(self.encoded.ops)
        reader = self.encoded.graph.ops[copy.start] if is_shared else self.encoded.maker(edge.v)
        is_update = reader.index in self.room.on_chip.updates
        return reader.kind is OpKind.COMPUTE and (self.holds_states or not is_update)


def _takes(left: IntArray, start: int, stop: int, num_bytes: int) -> bool:
    """True where so many bytes are left all the time; then they are taken."""
    beside = left[start:stop]
    if not beside.size or beside.min() < num_bytes:
        return False
    beside -= num_bytes
    return True


def _scattered_for_updates(room: DeviceRoom) -> set[int]:
    """Gradients of tables of rows: scatters make them in VMEM, also for updates."""
    graph, updates = room.graph, room.on_chip.updates
    return {
        op.results[0]
        for op in graph.ops
        if op.op_class is OpClass.SCATTER
        and takes_rows(graph, op)
        and updates.issuperset(graph.consumers[op.results[0]])
    }


def _argument_bytes(encoded: Encoded, choices: Sequence[int]) -> dict[int, int]:
    """What a device holds of each argument, by value."""
    return {
        encoded.maker(term.node).results[0]: int(term.usage[choices[term.node]])
        for term in encoded.problem.node_memory
        if encoded.is_argument(term)
    }


def _brought_at(
    room: DeviceRoom, brought: Mapping[int, Sequence[int]], arguments: Mapping[int, int]
) -> IntArray:
    """Bytes of arguments that are in VMEM at each op, from one matmul that reads them to the next.

    One that is read again much later is brought again.

    Source: chains of matmuls by one weight `float32[n, n]`, compiled by libtpu 0.0.52 for a v5e. Of
    the results, in bfloat16, none was in HBM where n is 3072 or 3584, and one where it is 4096.
    """
    ops = room.graph.ops
    change = np.zeros(len(ops) + 2, dtype=np.int64)
    for value, reads in brought.items():
        for read, later in zip_longest(reads, reads[1:]):
            stays = later is not None and room.on_chip.stays(ops[read], later)
            change[read] += arguments.get(value, 0)
            change[later if stays else read + 1] -= arguments.get(value, 0)
    return np.cumsum(change)


def _most_in_updates(room: DeviceRoom, live: IntArray) -> int:
    """The most that is live while a donated state is replaced; where none is, at any time."""
    makers = [room.graph.values[value].op for value in room.reused]
    return int(live[makers].max() if makers else live.max())


def _live_at(temporaries: Iterable[Buffer | LiveRange], num_ops: int) -> IntArray:
    """Bytes of all temporaries of a device, in VMEM or HBM: `int64[num_ops + 2]`."""
    change = np.zeros(num_ops + 2, dtype=np.int64)
    for one in temporaries:
        change[one.start] += one.num_bytes
        change[one.stop] -= one.num_bytes
    return np.cumsum(change)


def _values(room: DeviceRoom, decoded: Decoded) -> Iterator[Buffer]:
    """All that ops make, wherever it is."""
    for value in room.graph.values:
        start, stop = room.buffers.intervals[value.index]
        if room.graph.maker(value.index).kind is OpKind.ARGUMENT or value.index in room.reused:
            continue
        if stop > start:
            num_bytes = room.held_bytes(value, decoded.layouts[value.index])
            yield _in_vmem("value", value.index, value.op, num_bytes, start, stop)


def _copies(room: DeviceRoom, encoded: Encoded, decoded: Decoded) -> Iterator[Buffer]:
    """All copies that are resharded for ops."""
    for (value, layout, bits), (start, stop) in _moved(room, encoded, decoded).items():
        num_bytes = room.held_bytes(room.graph.values[value], layout, bits)
        yield _in_vmem("copy", value, start, num_bytes, start, stop)


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


def _moved(
    room: DeviceRoom, encoded: Encoded, decoded: Decoded
) -> dict[tuple[int, Layout, int], tuple[int, int]]:
    """From when to when there are copies of values that are moved for ops: by value and layout."""
    found: dict[tuple[int, Layout, int], tuple[int, int]] = {}
    for op in encoded.graph.ops:
        if op.index not in decoded.candidates or op.kind is not OpKind.COMPUTE:
            continue
        for position, value in enumerate(op.operands):
            layout = decoded.candidates[op.index].operands[position]
            if layout != decoded.layouts[value]:
                key = (value, layout, encoded.read_bits.to(op, position))
                own_stop = read_stop(room.graph, room.buffers, op)
                start, stop = found.get(key, (op.index, own_stop))
                found[key] = min(start, op.index), max(stop, own_stop)
    return found
