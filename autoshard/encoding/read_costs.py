"""What reads of a value cost: their move, and what is done beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from autoshard.candidates.candidate import Candidate
from autoshard.costing.costing import Costing
from autoshard.costing.moved_sums import Summed, together
from autoshard.encoding.cut_sums import CutSums
from autoshard.encoding.hidden_communication import exposed_seconds
from autoshard.encoding.order_costs import OrderCosts
from autoshard.encoding.picoseconds import picoseconds
from autoshard.encoding.shared_reads import reads_of
from autoshard.encoding.table_facts import TableFacts
from autoshard.encoding.tables import Tables
from autoshard.graph.buffers import Buffers
from autoshard.graph.program import Op, OpKind
from autoshard.layouts import Layout
from autoshard.reshard import ReshardTable
from solvers import FORBIDDEN

IntArray = npt.NDArray[np.int64]


@dataclass(slots=True)
class ReadCosts:
    """Prices reads; equal ones (of repeated layers) share one array.

    Rows of what is returned are the choices of the side that gives a value, columns those of the
    side that takes it; `rows` and `columns` are their places in the table of the value.

    Args:
        costing: Prices on this mesh.
        buffers: Storage of the program.
        tables: Of its tensors.
        facts: Of the tables.
        candidates: Of each op, by its index.

    Attributes:
        orders: Prices copies into another order of dimensions.
    """

    costing: Costing
    buffers: Buffers
    tables: Tables
    facts: TableFacts
    candidates: Mapping[int, tuple[Candidate, ...]]
    orders: OrderCosts = field(init=False)
    _costs: dict[tuple[int, ...], tuple[object, IntArray]] = field(default_factory=dict)
    _narrowed: dict[tuple[int, float], npt.NDArray[np.float64]] = field(default_factory=dict)
    _whole: dict[tuple[object, ...], IntArray] = field(default_factory=dict)
    _sums: Mapping[tuple[int, int], Summed] = field(init=False)

    def __post_init__(self) -> None:
        self.orders = OrderCosts(self.costing, self.buffers, self.tables, self.facts)
        self._sums = self.costing.moved_sums(self.tables.graph, self.buffers)

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
            start = self.facts.sent_from(table)[np.ix_(rows, columns)]
            return picoseconds(np.where(start < 0, 0.0, narrowed[start]) * repeat)

        return self._with_more(costs, (narrowed, rows, columns), (hash(repeat),), more)

    def narrowing_seconds(self, op: Op, position: int) -> npt.NDArray[np.float64] | None:
        """float64[num_layouts]: narrowing a piece of an operand that is then sent, by its layout.

        None for what is sent as it lies. Layouts are those of the operand's table.
        """
        value, bits = op.operands[position], self.tables.read_bits.to(op, position)
        if op.kind is not OpKind.COMPUTE or not self.tables.graph.values[value].shape:
            return None
        found = self.costing.narrowed_to_send(self.tables.graph, self.buffers, value, bits)
        if found is None:
            return None
        table = self.tables.of(value, bits)
        key = (id(table), found.num_bytes)
        if key not in self._narrowed:
            self._narrowed[key] = self.costing.narrowing_seconds(found, table.layouts)
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

    def with_sums(
        self,
        costs: IntArray,
        reads: Sequence[tuple[int, int]],
        rows: IntArray,
        columns: IntArray,
    ) -> IntArray:
        """What a move costs with the reductions that read what comes out of it."""
        found = {read[0]: self._sums[read] for read in reads if read in self._sums}
        if not found:
            return costs
        summed, (index, position) = together(found.values()), reads[0]
        op = self.tables.graph.ops[index]
        repeat = reads_of(op, position)

        def more() -> IntArray:
            table = self.tables.of(op.operands[position])
            seconds = self.costing.summing_seconds(summed, self.facts.pieces(table)[columns])
            moves = self.facts.moves(table)[np.ix_(rows, columns)]
            return np.where(moves, picoseconds(seconds * repeat), 0)

        return self._with_more(costs, (rows, columns), (*summed, hash(repeat)), more)

    def summing_seconds(
        self, op: Op, position: int, layout: Layout, before: dict[int, Summed] | None = None
    ) -> float:
        """Seconds of the reductions that read what is moved to an operand, in its layout there.

        Args:
            op: The op.
            position: Of the operand.
            layout: In which it comes out of its move.
            before: By op, those of other readers of the same copy, which one kernel makes with
                these; these are added.
        """
        summed = self._sums.get((op.index, position))
        known = {} if before is None else before
        if summed is None or op.index in known:
            return 0.0
        pieces = np.array([self.costing.parts.num_pieces(layout)])

        def seconds(sums: Iterable[Summed]) -> float:
            return float(self.costing.summing_seconds(together(sums), pieces)[0])

        less = seconds(known.values()) if known else 0.0
        known[op.index] = summed
        return seconds(known.values()) - less

    def where_made(
        self, costs: IntArray, table: ReshardTable, rows: IntArray, columns: IntArray
    ) -> IntArray:
        """What an operand costs that nothing can move, where there is a choice."""
        moves = self.facts.moves(table)[np.ix_(rows, columns)]
        if moves.all(axis=0).any() or moves.all(axis=1).any():
            return costs
        return np.where(moves, FORBIDDEN, costs)

    def with_whole_sums(
        self,
        costs: IntArray,
        cut: CutSums,
        value: int,
        read: tuple[int, int],
        rows: IntArray,
        columns: IntArray,
    ) -> IntArray:
        """What a read costs with the sum taken whole that it cuts further than it is scattered."""
        maker = self.tables.graph.maker(value)
        if cut.reads.get(maker.index) != read:
            return costs
        whole = self._whole_sums(maker)

        def more() -> IntArray:
            further = ~self.facts.moves(self.tables.of(value))[np.ix_(rows, columns)]
            further &= rows[:, None] != columns
            return np.where(further, whole[:, None], 0)

        return self._with_more(costs, (whole,), (), more)

    def _with_more(
        self,
        costs: IntArray,
        arrays: tuple[npt.NDArray[Any], ...],
        marks: tuple[int, ...],
        more: Callable[[], IntArray],
    ) -> IntArray:
        """Costs with something beside them; one array for equal reads.

        Args:
            costs: Before.
            arrays: That what comes to them is computed from; equal ones are one array.
            marks: Numbers that it depends on too.
            more: What comes to them, of the same shape.
        """
        key = (id(costs), *map(id, arrays), *marks)
        found = self._costs.get(key)
        if found is None:
            found = self._costs[key] = ((costs, *arrays), costs + more())
        return found[1]

    def _whole_sums(self, op: Op) -> IntArray:
        """int64[num_candidates]: what sums taken whole cost more than scattered ones."""
        candidates = self.candidates[op.index]
        calls = self.costing.sums_in_call(self.tables.graph, op)
        order = self.costing.made_order(self.tables.graph, op)
        kind = (op.op_class, op.repeat, self.tables.type_of(op.results[0]))
        key = (id(candidates), *kind, calls, order)
        found = self._whole.get(key)
        if found is None:
            more = self.costing.whole_sum_seconds(self.tables.graph, op, candidates)
            found = self._whole[key] = picoseconds(more * op.repeat)
        return found
