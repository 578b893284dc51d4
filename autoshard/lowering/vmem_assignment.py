"""Buffers that XLA keeps in VMEM: all temporaries if they fit, else those live the shortest."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autoshard.costing.read_on_chip import brought_arguments
from autoshard.encoding.device_room import DeviceRoom
from autoshard.encoding.encoded import Decoded, Encoded
from autoshard.graph.buffers import read_stop
from autoshard.graph.images import images_of
from autoshard.graph.program import OpClass, OpKind, Value
from autoshard.graph.row_lookups import takes_rows
from autoshard.layouts import Layout
from autoshard.lowering.live_ranges import LiveRange, is_argument, largest_first
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
        live: Bytes of all temporaries at each op, in VMEM or HBM: `int64[num_ops + 2]`.
    """

    room: DeviceRoom
    encoded: Encoded
    hbm_only: Set[int]
    holds_all: bool
    holds_states: bool
    num_bytes: int
    live: IntArray

    @classmethod
    def for_plan(
        cls, room: DeviceRoom, encoded: Encoded, decoded: Decoded, choices: Sequence[int]
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
        live = _live_at(room, encoded, decoded)
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
        return cls(room, encoded, hbm_only, holds_all, holds_states, num_bytes, live)

    def resident(self, ranges: Sequence[LiveRange]) -> set[LiveRange]:
        """Those that are in VMEM: the shortest live ranges are placed first."""
        problem = self.encoded.problem
        temporaries = [one for one in ranges if not is_argument(self.encoded, one)]
        counted = np.zeros_like(self.live)
        for num_bytes, start, stop, _ in temporaries:
            counted[start:stop] += num_bytes
        left: IntArray = self.num_bytes - np.maximum(self.live - counted, 0)
        found = set()
        for one in sorted(temporaries, key=lambda one: (one.stop - one.start, largest_first(one))):
            place = one.term - len(problem.node_memory)
            may_be = (
                self.has_value(problem.node_memory[one.term])
                if place < 0
                else self.has_copy(problem.edge_memory[place])
            )
            beside = left[one.start : one.stop]
            if may_be and beside.size and beside.min() >= one.num_bytes:
                beside -= one.num_bytes
                found.add(one)
        return found

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


def _most_in_updates(room: DeviceRoom, live: IntArray) -> int:
    """The most that is live while a donated state is replaced; where none is, at any time."""
    makers = [room.graph.values[value].op for value in room.reused]
    return int(live[makers].max() if makers else live.max())


def _live_at(room: DeviceRoom, encoded: Encoded, decoded: Decoded) -> IntArray:
    """Bytes of all temporaries of a device, in VMEM or HBM: `int64[num_ops + 2]`."""
    graph = encoded.graph
    change = np.zeros(len(graph.ops) + 2, dtype=np.int64)

    def hold(start: int, stop: int, value: Value, layout: Layout, bits: int) -> None:
        local = room.held_bytes(value, layout, bits)
        change[start] += local
        change[stop] -= local

    for value in graph.values:
        start, stop = room.buffers.intervals[value.index]
        is_argument = graph.ops[value.op].kind is OpKind.ARGUMENT
        if stop > start and not is_argument and value.index not in room.reused:
            hold(start, stop, value, decoded.layouts[value.index], value.bits)
    for (index, layout, bits), (start, stop) in _moved(room, encoded, decoded).items():
        hold(start, stop, graph.values[index], layout, bits)
    return np.cumsum(change)


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
