"""Seconds of copies into another order of dimensions: of what is moved, and of slices."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from autoshard.costing.costing import Costing
from autoshard.costing.program_facts import ProgramFacts
from autoshard.costing.stack_slices import seconds_of_rows
from autoshard.encoding.tables import Tables
from autoshard.graph.program import PRODUCTS, Op, OpClass, Value
from autoshard.identity_cache import IdentityCache
from autoshard.reshard import ReshardTable, joins_columns, widens_rows

FloatArray = npt.NDArray[np.float64]


class _Reading(NamedTuple):
    """What the copies of a value depend on beside its table.

    Args:
        is_turned: Whether the reader transposes it.
        is_state: Whether the reader is an update of a matrix.
        in_rows: Whether it is read in narrow rows.
        copies: How many tensors are copied with it.
    """

    is_turned: bool
    is_state: bool
    in_rows: bool
    copies: int


@dataclass(slots=True)
class OrderCosts:
    """Prices copies into another order; equal ones (of repeated layers) share one array."""

    program: ProgramFacts
    tables: Tables
    _known: IdentityCache[FloatArray | None] = field(default_factory=IdentityCache)
    _of_read: dict[tuple[int, int], FloatArray | None] = field(default_factory=dict)

    @property
    def costing(self) -> Costing:
        return self.program.costing

    def seconds(self, op: Op, value: int) -> FloatArray | None:
        """float64[num_layouts, num_layouts]: copies of what comes out of a move out of order.

        None where the reader takes it in any order of dimensions. What is read in narrow rows is
        copied into them. A loop puts the rows of slices together of what does not move. Rows and
        columns are those of the value's table.
        """
        read = self.program.stand_ins[op.index], op.operands.index(value)
        if read not in self._of_read:
            self._of_read[read] = self._seconds(op, value)
        return self._of_read[read]

    def _seconds(self, op: Op, value: int) -> FloatArray | None:
        if op.index in self.program.stacks.of_rows:
            return self._of_slices(op, value)
        if op.op_class in PRODUCTS or not self.costing.backend.layout.keeps_collective_layouts:
            return None
        found = self.tables.graph.values[value]
        if len(found.shape) < 2:
            return None
        table, reading = self.tables.of(value), self._reading(op, found)
        return self._known.get(lambda: self._copies(table, found, reading), table, key=reading)

    def _of_slices(self, loop: Op, value: int) -> FloatArray | None:
        times, stack = self.program.stacks.of_rows[loop.index], self.tables.graph.values[value]
        table = self.tables.of(value)

        def together() -> FloatArray | None:
            seconds = [seconds_of_rows(self.costing, stack, one) for one in table.layouts]
            return times * np.diag(np.array(seconds)) if any(seconds) else None

        return self._known.get(together, table, key=(times, stack.bits))

    def _reading(self, op: Op, value: Value) -> _Reading:
        is_turned = op.name == "transpose"
        is_alone = is_turned or op.op_class is OpClass.GATHER
        return _Reading(
            is_turned=is_turned,
            is_state=op.index in self.program.buffers.updates and len(value.shape) == 2,
            in_rows=value.index in self.program.tiles.in_rows,
            copies=1 if is_alone else self.costing.backend.layout.relayout_copies,
        )

    def _copies(self, table: ReshardTable, value: Value, reading: _Reading) -> FloatArray | None:
        num_bytes = 2.0 * value.num_bytes / table.pieces
        moves = table.moves
        copied = self._is_copied(table, value, reading)
        found = np.where(copied, reading.copies * self.costing.copy_seconds(num_bytes), 0.0)
        if reading.in_rows:
            rows = self.program.row_copy_seconds(value.index, table.layouts)
            found = np.maximum(found, np.where(moves, rows, 0.0))
        return found if found.any() else None

    def _is_copied(
        self, table: ReshardTable, value: Value, reading: _Reading
    ) -> npt.NDArray[np.bool_]:
        """bool[num_layouts, num_layouts]: whether what comes out of a move is out of order."""
        if reading.is_turned:
            return table.moves
        parts, shape = self.costing.parts, value.shape
        widened = widens_rows(table, parts, shape, self.costing.backend.layout.num_lanes)
        return widened | joins_columns(table, parts, shape) if reading.is_state else widened
