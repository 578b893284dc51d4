"""Memory of rows that are looked up or scattered where they do not fill the lanes of a tile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from autoshard.candidates.candidate import Candidate
from autoshard.encoding.device_room import DeviceRoom
from autoshard.encoding.memory_tags import ROWS, WORK
from autoshard.encoding.padded_rows import (
    copied_from,
    padded_bytes,
    padded_row_bytes,
    summed_row_bytes,
    summed_with,
)
from autoshard.graph.row_lookups import row_updates
from solvers import NodeMemory


@dataclass(frozen=True, slots=True)
class RowMemory:
    """The memory terms of look-ups and scatters of rows.

    Args:
        room: Of the device.
        candidates: By op index.
        node_by_op: Likewise.
    """

    room: DeviceRoom
    candidates: Mapping[int, tuple[Candidate, ...]]
    node_by_op: Mapping[int, int]

    def terms(self) -> Iterator[NodeMemory]:
        """All of them; none where nothing lies in lanes."""
        if self.room.backend.layout.num_lanes > 1:
            yield from self._padded()
            yield from self._summed()
            yield from self._updated()

    def _padded(self) -> Iterator[NodeMemory]:
        """Copies into padded rows that look-ups make; those of tables all before the first."""
        room, lanes = self.room, self.room.backend.layout.num_lanes
        for index, node in self.node_by_op.items():
            op, candidates = room.graph.ops[index], self.candidates[index]
            for value, held in padded_row_bytes(
                room.graph, room.costing.parts, op, candidates, lanes, room.rows
            ):
                is_brief = room.vmem.holds_copies or op.name == "reshape"
                usage = (held * room.overhead).astype(np.int64)
                left = room.vmem.hbm_bytes(usage, may_hold=is_brief)
                begun = copied_from(op, value, room.tables, lambda time: time)
                begun = min(begun, room.earliest(index, index))
                yield NodeMemory(node, begun, index + 1, left, WORK)

    def _summed(self) -> Iterator[NodeMemory]:
        """Padded rows that look-ups sum over devices: there until all of one call have been."""
        room, lanes = self.room, self.room.backend.layout.num_lanes
        for index, last in summed_with(room.graph).items():
            if index not in self.node_by_op:
                continue
            op, candidates = room.graph.ops[index], self.candidates[index]
            held = summed_row_bytes(room.graph, room.costing.parts, op, candidates, lanes)
            if held is not None:
                usage = (held * room.overhead).astype(np.int64)
                left = room.vmem.hbm_bytes(usage, may_hold=room.vmem.holds_copies)
                yield NodeMemory(self.node_by_op[index], index, last + 1, left, ROWS)

    def _updated(self) -> Iterator[NodeMemory]:
        """Padded copies of tables and states that are there until their rows are updated.

        Source: twelve tables of 200,000 rows with SGD, Adagrad and Adam, and four of a million,
        libtpu 0.0.52 for a v5e and a v5p.
        """
        room, lanes = self.room, self.room.backend.layout.num_lanes
        time_of, parts = room.buffers.time_of, room.costing.parts
        for update in row_updates(room.graph, room.buffers.updates):
            scatter, last = update.scatter, time_of(max(update.ops)) + 1
            if scatter not in self.node_by_op:
                continue
            (made,) = (room.graph.values[value] for value in room.graph.ops[scatter].results)
            layouts = [one.results[0] for one in self.candidates[scatter]]
            usage = np.array([padded_bytes(made, one, parts, lanes) for one in layouts])
            for state in update.states:
                begun = time_of(room.tables.get(state, scatter)) + 1
                yield NodeMemory(self.node_by_op[scatter], begun, last, usage, WORK)
