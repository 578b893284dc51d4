"""What reads of a value cost: their move, and what is done beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from autoshard.candidates.candidate import Candidate
from autoshard.costing.convert_motion import narrowed_argument
from autoshard.costing.costing import Costing
from autoshard.costing.program_facts import ProgramFacts
from autoshard.encoding.hidden_communication import exposed_seconds
from autoshard.encoding.order_costs import OrderCosts
from autoshard.encoding.picoseconds import picoseconds
from autoshard.encoding.shared_reads import reads_of
from autoshard.encoding.tables import Tables
from autoshard.graph.program import Op, OpKind
from autoshard.reshard import ReshardTable
from solvers import FORBIDDEN

IntArray = npt.NDArray[np.int64]


@dataclass(slots=True)
class ReadCosts:
    """Prices reads; equal ones (of repeated layers) share one array.

    Rows of what is returned are the choices of the side that gives a value, columns those of the
    side that takes it; `rows` and `columns` are their places in the table of the value.

    Attributes:
        orders: Prices copies into another order of dimensions.
    """

    program: ProgramFacts
    tables: Tables
    candidates: Mapping[int, tuple[Candidate, ...]]
    orders: OrderCosts = field(init=False)
    _costs: dict[tuple[int, ...], tuple[object, IntArray]] = field(default_factory=dict)
    _narrowed: dict[tuple[int, float], npt.NDArray[np.float64]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.orders = OrderCosts(self.program, self.tables)

    @property
    def costing(self) -> Costing:
        return self.program.costing

    def of_move(
        self, table: ReshardTable, rows: IntArray, columns: IntArray, repeat: float, slack: float
    ) -> IntArray:
        """What a move costs beyond the seconds in which computing hides it."""
        key = (id(table), id(rows), id(columns), hash((repeat, slack)))
        found = self._costs.get(key)
        if found is None:
            seconds = exposed_seconds(table.seconds[np.ix_(rows, columns)], slack)
            found = ((table, rows, columns), picoseconds(seconds * repeat))
            self._costs[key] = found
        return found[1]

    def with_narrowing(
        self, costs: IntArray, op: Op, position: int, rows: IntArray, columns: IntArray
    ) -> IntArray:
        """What an operand costs with what narrows it before it is sent."""
        narrowed = self.narrowing_seconds(op, position)
        if narrowed is None:
            return costs
        repeat = reads_of(op, position)

        def more() -> IntArray:
            table = self.tables.of(op.operands[position], self.tables.read_bits.to(op, position))
            start = table.sent_from[np.ix_(rows, columns)]
            return picoseconds(np.where(start < 0, 0.0, narrowed[start]) * repeat)

        return self._with_more(costs, (narrowed, rows, columns), (hash(repeat),), more)

    def narrowing_seconds(self, op: Op, position: int) -> npt.NDArray[np.float64] | None:
        """float64[num_layouts]: narrowing a piece of an operand that is then sent, by its layout.

        None for what is sent as it lies. Layouts are those of the operand's table.
        """
        value, bits = op.operands[position], self.tables.read_bits.to(op, position)
        if op.kind is not OpKind.COMPUTE or not self.tables.graph.values[value].shape:
            return None
        program = self.program
        if not self.costing.backend.collectives.convert_motion:
            return None
        argument = narrowed_argument(program.graph, program.buffers, value, bits)
        if argument is None or argument.index in program.converted_for_loops:
            return None
        table, found = self.tables.of(value, bits), program.graph.values[value]
        wide = program.graph.values[argument.results[0]].bits
        num_bytes = found.num_bytes * (wide + bits) / found.bits  # read and written
        key = (id(table), num_bytes)
        if key not in self._narrowed:
            local = num_bytes / table.pieces
            self._narrowed[key] = self.costing.conversion_seconds(local)
        return self._narrowed[key]

    def with_order(
        self, costs: IntArray, op: Op, position: int, rows: IntArray, columns: IntArray
    ) -> IntArray:
        """What an operand costs with the copies it takes into another order of dimensions."""
        order = self.orders.seconds(op, op.operands[position])
        if order is None:
            return costs
        repeat = reads_of(op, position)
        return self._with_more(
            costs,
            (order, rows, columns),
            (hash(repeat),),
            lambda: picoseconds(order[np.ix_(rows, columns)] * repeat),
        )

    def where_made(
        self, costs: IntArray, table: ReshardTable, rows: IntArray, columns: IntArray
    ) -> IntArray:
        """What an operand costs that nothing can move, where there is a choice."""
        moves = table.moves[np.ix_(rows, columns)]
        if moves.all(axis=0).any() or moves.all(axis=1).any():
            return costs
        return np.where(moves, FORBIDDEN, costs)

    def _with_more(
        self,
        costs: IntArray,
        arrays: tuple[npt.NDArray[Any], ...],
        marks: tuple[int, ...],
        more: Callable[[], IntArray],
    ) -> IntArray:
        """Costs with something beside them; one array for equal reads."""
        key = (id(costs), *map(id, arrays), *marks)
        found = self._costs.get(key)
        if found is None:
            found = self._costs[key] = ((costs, *arrays), costs + more())
        return found[1]
