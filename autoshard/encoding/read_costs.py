"""What reads of a value cost: their move, and what is done beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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
from autoshard.identity_cache import IdentityCache
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
    _costs: IdentityCache[IntArray] = field(default_factory=IdentityCache)
    _narrowed: IdentityCache[npt.NDArray[np.float64]] = field(default_factory=IdentityCache)

    def __post_init__(self) -> None:
        self.orders = OrderCosts(self.program, self.tables)

    @property
    def costing(self) -> Costing:
        return self.program.costing

    def of_move(
        self, table: ReshardTable, rows: IntArray, columns: IntArray, repeat: float, slack: float
    ) -> IntArray:
        """What a move costs beyond the seconds in which computing hides it."""

        def exposed() -> IntArray:
            return picoseconds(exposed_seconds(table.seconds, slack) * repeat)

        costs = self._costs.get(exposed, table, key=(repeat, slack))
        return self._costs.get(lambda: costs.take(rows, 0).take(columns, 1), costs, rows, columns)

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
            start = table.sent_from.take(rows, 0).take(columns, 1)
            return costs + picoseconds(np.where(start < 0, 0.0, narrowed[start]) * repeat)

        return self._costs.get(more, costs, narrowed, rows, columns, key=repeat)

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
        return self._narrowed.get(
            lambda: self.costing.conversion_seconds(num_bytes / table.pieces), table, key=num_bytes
        )

    def with_order(
        self, costs: IntArray, op: Op, position: int, rows: IntArray, columns: IntArray
    ) -> IntArray:
        """What an operand costs with the copies it takes into another order of dimensions."""
        order = self.orders.seconds(op, op.operands[position])
        if order is None:
            return costs
        repeat = reads_of(op, position)

        def more() -> IntArray:
            return costs + picoseconds(order.take(rows, 0).take(columns, 1) * repeat)

        return self._costs.get(more, costs, order, rows, columns, key=repeat)

    def where_shared(self, costs: IntArray, shared: npt.NDArray[np.bool_]) -> IntArray:
        """Costs of an operand that other reads move where bool[num_columns] says so."""
        return self._costs.get(lambda: np.where(shared, 0, costs), costs, key=shared.tobytes())

    def where_made(
        self, costs: IntArray, table: ReshardTable, rows: IntArray, columns: IntArray
    ) -> IntArray:
        """Costs of an operand that nothing can move, where some choice leaves it in place."""

        def in_place() -> IntArray:
            moves = table.moves.take(rows, 0).take(columns, 1)
            return costs if moves.all() else np.where(moves, FORBIDDEN, costs)

        return self._costs.get(in_place, costs, table, rows, columns, key="in place")

    def rather_behind(
        self, costs: IntArray, table: ReshardTable, rows: IntArray, columns: IntArray
    ) -> IntArray:
        """Costs of an operand before whose reader no constraint can stand: a move counts twice.

        So the reader's result is moved where that costs the same.
        """

        def dearer() -> IntArray:
            moves = table.moves.take(rows, 0).take(columns, 1)
            return np.where(moves & (costs < FORBIDDEN), 2 * costs + 1, costs)

        return self._costs.get(dearer, costs, table, rows, columns, key="behind")
