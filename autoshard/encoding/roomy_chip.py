"""Plans whose temporaries all fit on the chip at any time: none of them is moved out to wait."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoshard.encoding.device_room import DeviceRoom
from autoshard.encoding.encoded import Decoded, Encoded
from autoshard.graph.buffers import read_stop
from autoshard.graph.program import OpClass, OpKind
from autoshard.layouts import Layout
from solvers import EdgeMemory, NodeMemory

SHARE = 0.55
"""Of the room on the chip, what temporaries may take for none to be moved out.

The rest is for what is brought in of arguments. With libtpu 0.0.42 for a v5e steps of Llama that
took 53, 60 and 63 MB of 117 at most had 14, 2 and 4 MB in device memory; one that took 76 had 38,
and one of an MLP that took 92 had 11 MB of the 19 that wait.
"""


@dataclass(frozen=True, slots=True)
class RoomyChip:
    """Which memory terms of a plan lie on the chip, as there is room for all.

    Args:
        room: Of the device.
        encoded: The problem.
    """

    room: DeviceRoom
    encoded: Encoded

    @classmethod
    def for_plan(cls, room: DeviceRoom, encoded: Encoded, decoded: Decoded) -> RoomyChip | None:
        """None where the chip has no room for all temporaries of a plan.

        Nor where there are convolutions: with padded channels (a U-Net, 158 MB in device memory of
        50 that are held at once), they take more room than can be told.
        """
        on_chip = room.on_chip
        if any(op.op_class is OpClass.CONVOLUTION for op in room.graph.ops):
            return None
        if not on_chip.moved or _most_at_once(room, encoded, decoded) > SHARE * on_chip.room:
            return None
        return cls(room, encoded)

    def has_value(self, term: NodeMemory) -> bool:
        """Whether a value is there: no argument, no result, and in no loop."""
        op = self.encoded.maker(term.node)
        on_chip = self.room.on_chip
        return op.kind is OpKind.COMPUTE and not any(on_chip.kept_out[v] for v in op.results)

    def has_copy(self, copy: EdgeMemory) -> bool:
        """Whether a copy that is moved for an op is there: none for results or updates."""
        edge = self.encoded.problem.edges[copy.edge]
        is_shared = edge.v >= len(self.encoded.ops)
        reader = self.encoded.graph.ops[copy.start] if is_shared else self.encoded.maker(edge.v)
        return reader.kind is OpKind.COMPUTE and reader.index not in self.room.on_chip.updates


def _most_at_once(room: DeviceRoom, encoded: Encoded, decoded: Decoded) -> int:
    """Bytes of all temporaries of a device, on the chip or not, when they are most."""
    graph, parts = encoded.graph, encoded.parts
    change = np.zeros(len(graph.ops) + 2, dtype=np.int64)

    def hold(start: int, stop: int, num_bytes: int, layout: Layout) -> None:
        local = num_bytes // parts.num_pieces(layout)
        change[start] += local
        change[stop] -= local

    for value in graph.values:
        start, stop = room.buffers.intervals[value.index]
        is_argument = graph.ops[value.op].kind is OpKind.ARGUMENT
        if stop > start and not is_argument and value.index not in room.reused:
            hold(start, stop, value.num_bytes, decoded.layouts[value.index])
    for (index, layout, bits), (start, stop) in _moved(room, encoded, decoded).items():
        value = graph.values[index]
        hold(start, stop, value.num_bytes * bits // value.bits, layout)
    return int(np.cumsum(change).max())


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
