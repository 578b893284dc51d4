"""What waits on the chip: all temporaries of a plan if they fit, else those that wait the least."""

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
from solvers import EdgeMemory, NodeMemory

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RoomyChip:
    """Which memory terms of a plan may wait on the chip, and the room there.

    Args:
        room: Of the device.
        encoded: The problem.
        kept_out: Values that are not there.
        holds_all: Whether there is room for all temporaries: what loops carry is there too.
        holds_states: Whether there is besides for all arguments while updates run: what these read
            is there too.
        num_bytes: Room for temporaries: what the arguments leave that products read there.
        held: Bytes of all temporaries at each op, on the chip or not: `int64[num_ops + 2]`.
    """

    room: DeviceRoom
    encoded: Encoded
    kept_out: Set[int]
    holds_all: bool
    holds_states: bool
    num_bytes: int
    held: IntArray

    @classmethod
    def for_plan(
        cls, room: DeviceRoom, encoded: Encoded, decoded: Decoded, choices: Sequence[int]
    ) -> RoomyChip | None:
        """None where temporaries do not wait on the chip.

        So it is on most machines, and where convolutions cut few images into more: these take more
        room than can be told (a U-Net, 158 MB in device memory of 50 that are held at once).
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
        held = _held_at(room, encoded, decoded)
        beside_states = on_chip.room - sum(arguments.values())
        has_room = _most_in_updates(room, held) <= beside_states
        holds_all = int(held.max()) <= num_bytes
        holds_states = has_room and holds_all
        owner = room.buffers.owner
        if holds_all:
            kept_out = {owner[op.operands[0]] for op in encoded.graph.results}
        else:
            kept_out = {value for value, is_out in enumerate(on_chip.kept_out) if is_out}
        if not holds_states:
            kept_out |= {owner[v] for i in on_chip.updates for v in room.graph.ops[i].operands}
            kept_out -= _scattered_for_updates(room)
        return cls(room, encoded, kept_out, holds_all, holds_states, num_bytes, held)

    def left_beside(self, kept: IntArray) -> IntArray:
        """Room at each op beside what is read soon: all but what is kept in device memory.

        Args:
            kept: Bytes of temporaries there at each op: `int64[num_ops + 2]`.
        """
        left: IntArray = self.num_bytes - np.maximum(self.held - kept, 0)
        return left

    def has_value(self, term: NodeMemory) -> bool:
        """Whether a value may be there: no argument, no result; what loops carry if all are."""
        op = self.encoded.maker(term.node)
        is_made = op.kind is OpKind.COMPUTE or (self.holds_all and op.kind is OpKind.JOIN)
        return is_made and self.kept_out.isdisjoint(op.results)

    def has_copy(self, copy: EdgeMemory) -> bool:
        """Whether a copy that is moved for an op may be there: none for results or updates."""
        edge = self.encoded.problem.edges[copy.edge]
        is_shared = edge.v >= len(self.encoded.ops)
        reader = self.encoded.graph.ops[copy.start] if is_shared else self.encoded.maker(edge.v)
        is_update = reader.index in self.room.on_chip.updates
        return reader.kind is OpKind.COMPUTE and (self.holds_states or not is_update)


def _scattered_for_updates(room: DeviceRoom) -> set[int]:
    """Gradients of tables of rows: scatters make them on the chip, also for updates."""
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


def _most_in_updates(room: DeviceRoom, held: IntArray) -> int:
    """The most that is held while a donated state is replaced; where none is, at any time."""
    makers = [room.graph.values[value].op for value in room.reused]
    return int(held[makers].max() if makers else held.max())


def _held_at(room: DeviceRoom, encoded: Encoded, decoded: Decoded) -> IntArray:
    """Bytes of all temporaries of a device, on the chip or not: `int64[num_ops + 2]`."""
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
