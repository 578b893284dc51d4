"""Memory that moves take: the copies they make."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from autoshard.candidates.candidate import Candidate
from autoshard.encoding.all_reduce_motion import adds_whole
from autoshard.encoding.device_room import DeviceRoom
from autoshard.encoding.shared_reads import SharedRead
from autoshard.graph.buffers import read_stop
from autoshard.graph.dataflow import source_of
from autoshard.graph.op_traits import is_elementwise, renames
from autoshard.graph.program import PRODUCTS, Op, OpClass, OpKind, Value
from autoshard.graph.recomputing import matmuls_reading
from autoshard.identity_cache import IdentityCache
from autoshard.reshard import ReshardTable, turned_shares
from solvers import EdgeMemory

IntArray = npt.NDArray[np.int64]

SLICED = "sliced"
"""Tag of a memory term: a value that is stored because a product reads a slice of it."""


@dataclass(frozen=True, slots=True)
class CopyMemory:
    """The memory terms of edges."""

    room: DeviceRoom
    _usage: IdentityCache[IntArray] = field(default_factory=IdentityCache)
    _copied: IdentityCache[IntArray | None] = field(default_factory=IdentityCache)
    _split: IdentityCache[tuple[IntArray, IntArray]] = field(default_factory=IdentityCache)
    _common: IdentityCache[npt.NDArray[np.bool_]] = field(default_factory=IdentityCache)
    _turns: IdentityCache[npt.NDArray[np.float64]] = field(default_factory=IdentityCache)

    def usage_of(
        self,
        op: Op,
        table: ReshardTable,
        rows: IntArray,
        columns: IntArray,
        value: int,
        bits: int,
    ) -> IntArray | None:
        """int64[num_rows, num_columns]: bytes of a reshard of an operand; None: negligible."""
        room = self.room
        if self._is_reused(op, value):
            return self._outgrown_bytes(table, rows, columns, value)
        if op.index in room.repeated:
            return self._twice_bytes(table, rows, columns, value)
        may_hold = room.vmem.may_hold_copy(op, {op.index, self._stop(op) - 1})
        if room.is_scarce and op.op_class is OpClass.GATHER:  # narrowed where the rows move on
            bits = room.graph.values[value].bits
        return self.of_move(table, rows, columns, value, bits, may_hold=may_hold)

    def of_operand(self, edge: int, op: Op, value: int, usage: IntArray) -> EdgeMemory:
        """Memory that a reshard of an operand takes, of so many bytes."""
        room = self.room
        owner = room.buffers.owner[value]
        if self._is_reused(op, value):
            return EdgeMemory(edge, *room.buffers.intervals[owner], usage)
        if owner in room.results and op.kind is OpKind.RESULT:
            is_first = room.results[owner] == op
            start = room.buffers.intervals[owner][0] if is_first else 0  # before that: `UNWRITTEN`
        else:
            start = room.earliest(op.index, room.buffers.time_of(op.index))
        return EdgeMemory(edge, start, max(self._stop(op), start + 1), usage)

    def _is_reused(self, op: Op, value: int) -> bool:
        """True of a result that ends in the buffer of a donated argument."""
        return op.kind is OpKind.RESULT and self.room.buffers.owner[value] in self.room.reused

    def _stop(self, op: Op) -> int:
        """When an op needs what it reads no more; what the program returns stays."""
        room = self.room
        is_end = op.kind is OpKind.RESULT
        return len(room.graph.ops) if is_end else read_stop(room.graph, room.buffers, op)

    def of_move(
        self,
        table: ReshardTable,
        rows: IntArray,
        columns: IntArray,
        value: int,
        bits: int,
        *,
        may_hold: bool,
    ) -> IntArray | None:
        """int64[num_rows, num_columns]: bytes of the copy a reshard makes; None: negligible."""
        room = self.room
        tensor = room.graph.values[value]
        padded = room.indices.copied_bytes(table, tensor, bits)
        is_negligible = (
            tensor.num_bytes * bits < room.negligible_bytes * tensor.bits
            if padded is None
            else padded.max() < room.negligible_bytes
        )
        if is_negligible:
            return None

        def in_hbm() -> IntArray | None:
            held = self._local(table, tensor, bits)[columns]
            local = np.broadcast_to(held, (len(rows), len(columns)))
            moved = table.moves.take(rows, 0).take(columns, 1)
            copied = np.where(moved, local, 0).astype(np.int64)
            if padded is not None:
                whole = (padded.take(rows, 0).take(columns, 1) * room.overhead).astype(np.int64)
                copied = np.maximum(copied, whole)
            found = room.vmem.hbm_bytes(copied, may_hold=may_hold)
            return found if found.any() else None

        key = (may_hold, padded is not None)
        return self._copied.get(in_hbm, table, rows, columns, key=key)

    def of_sliced(
        self,
        edge: int,
        op: Op,
        table: ReshardTable,
        rows: IntArray,
        columns: IntArray,
        value: int,
        bits: int,
    ) -> Iterator[EdgeMemory]:
        """Memory of a value that its matmuls compute, stored because one of them reads a slice.

        Source: an activation between two matmuls or convolutions and the gradient of the second
        one's weights, of a slice of it, in float32 and bfloat16 (libtpu 0.0.52 for v5e, v5p, v6e).
        """
        room = self.room
        graph, made = room.graph, room.graph.values[value]
        if op.op_class not in PRODUCTS or not room.backend.fusion.fuses_into_matmuls:
            return
        maker = graph.maker(source_of(graph, value, lambda op, _: renames(op)))
        is_fused = is_elementwise(maker) and not room.buffers.is_stored[maker.results[0]]
        num_reads = sum(1 for _ in matmuls_reading(graph, maker.results[0])) if is_fused else 0
        if num_reads < 2 or made.num_bytes < room.negligible_bytes:
            return

        def sliced() -> IntArray:
            local = self._local(table, made, bits)[rows]
            is_sliced = ~table.moves.take(rows, 0).take(columns, 1) & (rows[:, None] != columns)
            return np.where(is_sliced, local[:, None], 0).astype(np.int64)

        usage = self._usage.get(sliced, table, rows, columns, key=(SLICED, bits))
        if usage.any():
            start, stop = room.buffers.time_of(maker.index), read_stop(graph, room.buffers, op)
            yield EdgeMemory(edge, start, stop, usage, SLICED)

    def of_reader(
        self,
        copy: EdgeMemory,
        op: Op,
        read: SharedRead | None,
        table: ReshardTable,
        columns: IntArray,
    ) -> Iterator[EdgeMemory]:
        """A copy made for one reader: for it alone, or for all if another may have one alone."""
        if read is None or not read.movers:
            yield copy
            return
        common = read.common
        is_other = np.array(read.movers) != op.index
        is_common = self._common.get(
            lambda: np.array([table.layouts[column] in common for column in columns]),
            table,
            columns,
            common,
        )

        def split() -> tuple[IntArray, IntArray]:
            alone = np.where(is_other[:, None] & is_common, 0, copy.usage)
            return alone, copy.usage - alone

        key = is_other.tobytes(), is_common.tobytes()
        alone, for_all = self._split.get(split, copy.usage, key=key)
        yield replace(copy, usage=alone)
        start, stop = min(read.start, copy.start), max(read.stop, copy.stop)
        yield EdgeMemory(copy.edge, start, stop, for_all)

    def of_turned(
        self,
        edge: int,
        time: int,
        table: ReshardTable,
        rows: IntArray,
        columns: IntArray,
        value: int,
    ) -> Iterator[EdgeMemory]:
        """What a gather holds twice while it is copied into order, where the backend does so."""
        room = self.room
        found = room.graph.values[value]
        is_copied = room.backend.collectives.transposes_all_gathers
        if not is_copied or found.num_bytes < room.negligible_bytes:
            return

        def held_twice() -> IntArray:
            shares = self._turns.get(
                lambda: turned_shares(table, room.costing.parts, found.shape), table
            )
            whole = int(found.num_bytes * room.overhead)
            held: IntArray = (shares.take(rows, 0).take(columns, 1) * whole).astype(np.int64)
            return held

        usage = self._usage.get(held_twice, table, rows, columns, key="turned")
        if usage.any():
            yield EdgeMemory(edge, time, time + 1, usage)

    def of_scatter(
        self,
        edge: int,
        op: Op,
        candidates: tuple[Candidate, ...],
        add: Op,
        additions: tuple[Candidate, ...],
    ) -> Iterator[EdgeMemory]:
        """Zeros for a scatter into what is added to it, where it has to be summed by itself."""
        room = self.room
        (value,) = (room.graph.values[result] for result in op.results)
        filled = room.buffers.filled_at.get(op.index)
        if filled is None or room.buffers.is_stored[value.index]:
            return
        held = [room.local_bytes(value, c.partial or c.results[0]) for c in candidates]
        is_added = adds_whole(additions, candidates).T
        usage = np.where(is_added, 0, np.array(held, dtype=np.int64)[:, None])
        if usage.any() and value.num_bytes >= room.negligible_bytes:
            yield EdgeMemory(edge, filled, room.buffers.time_of(add.index) + 1, usage)

    def _local(self, table: ReshardTable, value: Value, bits: int) -> IntArray:
        """int64[num_layouts]: what a device holds of a temporary in each layout of a table."""

        def held() -> IntArray:
            local = [self.room.local_bytes(value, layout, bits) for layout in table.layouts]
            return np.array(local, dtype=np.int64)

        return self._usage.get(held, table, key=(value.shape, bits))

    def _twice_bytes(
        self, table: ReshardTable, rows: IntArray, columns: IntArray, value: int
    ) -> IntArray | None:
        """int64[num_rows, num_columns]: bytes of a result that is another one too, moved or not."""
        found = self.room.graph.values[value]
        if found.num_bytes < self.room.negligible_bytes:
            return None
        local = self._local(table, found, found.bits)[columns]
        return np.broadcast_to(local, (len(rows), len(columns))).astype(np.int64)

    def _outgrown_bytes(
        self, table: ReshardTable, rows: IntArray, columns: IntArray, value: int
    ) -> IntArray | None:
        """int64[num_rows, num_columns]: bytes of a value made otherwise than its result is kept.

        Only then does it need a buffer beside that of the donated argument it replaces.
        """
        room = self.room
        found = room.graph.values[value]
        if found.num_bytes < room.negligible_bytes:
            return None

        def outgrown() -> IntArray:
            local = self._local(table, found, found.bits)[rows]
            return np.where(rows[:, None] == columns, 0, local[:, None]).astype(np.int64)

        usage = self._usage.get(outgrown, table, rows, columns, key="outgrown")
        return usage if usage.any() else None
