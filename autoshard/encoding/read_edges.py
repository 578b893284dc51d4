"""Reads as edges of the choice problem: what moves of operands cost, and the copies they make."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from autoshard.encoding.copy_memory import CopyMemory
from autoshard.encoding.hidden_communication import Hidden
from autoshard.encoding.left_in_place import is_left_in_place, is_within_equation
from autoshard.encoding.read_costs import ReadCosts
from autoshard.encoding.shared_reads import SharedRead, reads_of
from autoshard.encoding.tables import Tables
from autoshard.graph.program import Graph, Op, OpClass
from solvers import FORBIDDEN, Edge, EdgeMemory

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class _Source:
    """Where a read takes its value from.

    Args:
        node: The node.
        layouts: int64[num_choices]: the place of each choice's layout in the table of the value.
        read: Where it is the read that several ops share.
    """

    node: int
    layouts: IntArray
    read: SharedRead | None = None


@dataclass(frozen=True, slots=True)
class ReadEdges:
    """Builds the edges along which ops read what others make.

    Args:
        prices: What reads cost.
        copies: What they hold.
        node_by_op: The node of each op that has a choice, by its index.
        reads: Those that several ops share; their nodes come after those of the ops.
        hidden: What runs beside computing.

    Attributes:
        by_read: The edge to an op along which it reads an operand, by op index and position.
        by_shared_read: The edge to what several ops read, by each of these reads.
    """

    prices: ReadCosts
    copies: CopyMemory
    node_by_op: Mapping[int, int]
    reads: Sequence[SharedRead]
    hidden: Hidden
    by_read: dict[tuple[int, int], int] = field(default_factory=dict)
    by_shared_read: dict[tuple[int, int], int] = field(default_factory=dict)
    _costs: dict[Hashable, IntArray | None] = field(default_factory=dict)
    _usage: dict[Hashable, IntArray | None] = field(default_factory=dict)

    @property
    def _tables(self) -> Tables:
        return self.prices.tables

    @property
    def _graph(self) -> Graph:
        return self._tables.graph

    def make(self, nodes: Sequence[Op]) -> tuple[list[Edge], list[EdgeMemory]]:
        """To what several ops read from what makes it, then to every op from what it reads."""
        edges: list[Edge] = []
        copies: list[EdgeMemory] = []
        sources: dict[tuple[int, int], _Source] = {}
        for node, read in enumerate(self.reads, start=len(nodes)):
            source = self._making(read.value)
            edges.append(Edge(source.node, node, self._shared_costs(read, source)))
            copies += self._shared_copies(len(edges) - 1, read, source)
            self.by_shared_read.update(dict.fromkeys(read.reads, len(edges) - 1))
            given = _Source(node, self._tables.of_read(read), read)
            sources.update(dict.fromkeys(read.reads, given))
        for op in nodes:
            for position, value in enumerate(op.operands):
                if not self._is_chosen(op, value):
                    continue
                source = sources.get((op.index, position)) or self._making(value)
                like = self._like(op, position, source)
                if like not in self._costs:
                    self._costs[like] = self._operand_costs(op, position, source)
                costs = self._costs[like]
                if costs is None:
                    continue
                copies += self._operand_copies(len(edges), op, position, source, like)
                self.by_read[op.index, position] = len(edges)
                edges.append(Edge(source.node, self.node_by_op[op.index], costs))
        return edges, copies

    def _is_chosen(self, op: Op, value: int) -> bool:
        """True where another op with a choice makes what an op reads, and that can be cut."""
        found = self._graph.values[value]
        return found.op in self.node_by_op and found.op != op.index and bool(found.shape)

    def _like(self, op: Op, position: int, source: _Source) -> Hashable:
        """The same for reads that cost the same and make equal copies: of one op for all layers.

        Tables keep the arrays that identities tell apart.
        """
        other = self.prices.program.stand_ins[op.index]
        candidates = id(self.prices.candidates[op.index])
        return other, position, candidates, id(source.layouts), self._slack(op, position, source)

    def _slack(self, op: Op, position: int, source: _Source) -> float:
        """Seconds of a read that computing hides; none where the move for all readers has them."""
        place = (op.index, position)
        is_given = source.read is not None and source.read.reads[0] == place
        return 0.0 if is_given else self.hidden.reads.get(place, 0.0)

    def _shared_costs(self, read: SharedRead, source: _Source) -> IntArray:
        """What the move for several readers costs."""
        rows, columns = source.layouts, self._tables.of_read(read)
        if read.value in self._graph.on_host:
            return _only_alike(rows, columns)
        first, place = read.reads[0]
        prices, reader = self.prices, self._graph.ops[first]
        table = self._tables.of(read.value, read.bits)
        slack = self.hidden.reads.get(read.reads[0], 0.0)
        costs = prices.of_move(table, rows, columns, read.repeat, slack)
        costs = prices.with_narrowing(costs, reader, place, rows, columns)
        return prices.with_order(costs, reader, place, rows, columns)

    def _shared_copies(self, edge: int, read: SharedRead, source: _Source) -> Iterator[EdgeMemory]:
        """Copies that the move for several readers makes."""
        rows, columns = source.layouts, self._tables.of_read(read)
        table = self._tables.of(read.value, read.bits)
        times = {index for index, _ in read.reads} | {read.stop - 1}
        may_hold = self.copies.room.vmem.may_hold_copy(self._graph.ops[read.start], times)
        usage = self.copies.of_move(table, rows, columns, read.value, read.bits, may_hold=may_hold)
        if usage is not None:
            yield EdgeMemory(edge, read.start, read.stop, usage)
        reader = self._graph.ops[read.reads[0][0]]
        for stored in self.copies.of_sliced(
            edge, reader, table, rows, columns, read.value, read.bits
        ):
            yield replace(stored, stop=read.stop)
        yield from self.copies.of_turned(edge, read.start, table, rows, columns, read.value)

    def _operand_costs(self, op: Op, position: int, source: _Source) -> IntArray | None:
        """What an op's read of an operand costs; None where another read of it does it all."""
        value = op.operands[position]
        rows, columns = source.layouts, self._taking(op, position)
        if value in self._graph.on_host:
            return _only_alike(rows, columns)
        table = self._tables.of(value, self._tables.read_bits.to(op, position))
        prices, slack = self.prices, self._slack(op, position, source)
        costs = prices.of_move(table, rows, columns, reads_of(op, position), slack)
        costs = prices.with_narrowing(costs, op, position, rows, columns)
        earlier = _earlier_reads(op, position)
        if earlier:  # what one read of the op needs moved is there for its other reads
            shared = self._shared_reads(op, value, columns, earlier)
            if shared.all():
                return None
            costs = prices.where_shared(costs, shared)
        costs = prices.with_order(costs, op, position, rows, columns)
        if is_left_in_place(self._graph, op, position):
            costs = prices.where_made(costs, table, rows, columns)
        elif is_within_equation(self._graph, op, position):
            costs = prices.rather_behind(costs, table, rows, columns)
        return costs

    def _operand_copies(
        self, edge: int, op: Op, position: int, source: _Source, like: Hashable
    ) -> Iterator[EdgeMemory]:
        """Copies that an op's read of an operand makes."""
        value, bits = op.operands[position], self._tables.read_bits.to(op, position)
        rows, columns = source.layouts, self._taking(op, position)
        table = self._tables.of(value, bits)
        if like not in self._usage:
            self._usage[like] = self.copies.usage_of(op, table, rows, columns, value, bits)
        usage = self._usage[like]
        if usage is not None:
            copy = self.copies.of_operand(edge, op, value, usage)
            yield from self.copies.of_reader(copy, op, source.read, table, columns)
        yield from self.copies.of_sliced(edge, op, table, rows, columns, value, bits)
        yield from self.copies.of_turned(edge, op.index, table, rows, columns, value)
        maker = self._graph.maker(value)
        if maker.op_class is OpClass.SCATTER and source.read is None:
            made, added = self.prices.candidates[maker.index], self.prices.candidates[op.index]
            yield from self.copies.of_scatter(edge, maker, made, op, added)

    def _making(self, value: int) -> _Source:
        """What makes a value."""
        maker = self._graph.maker(value)
        place = maker.results.index(value)
        layouts = self._tables.indices(self.prices.candidates[maker.index], True, place, value)
        return _Source(self.node_by_op[maker.index], layouts)

    def _taking(self, op: Op, position: int) -> IntArray:
        """int64[num_candidates]: where an op takes an operand."""
        candidates, value = self.prices.candidates[op.index], op.operands[position]
        return self._tables.indices(candidates, False, position, value)

    def _shared_reads(
        self, op: Op, value: int, columns: IntArray, earlier: list[int]
    ) -> npt.NDArray[np.bool_]:
        """bool[num_candidates]: whether an earlier read of the same value has the same need."""
        candidates = self.prices.candidates[op.index]
        reads = [self._tables.indices(candidates, False, place, value) for place in earlier]
        shared: npt.NDArray[np.bool_] = np.any([read == columns for read in reads], axis=0)
        return shared


def _only_alike(rows: IntArray, columns: IntArray) -> IntArray:
    """Nothing moves between shardings in host memory."""
    return np.where(rows[:, None] == columns, 0, FORBIDDEN)


def _earlier_reads(op: Op, position: int) -> list[int]:
    """Earlier operands of an op that are the same value, read as often."""
    return [
        place
        for place in range(position)
        if op.operands[place] == op.operands[position]
        and reads_of(op, place) == reads_of(op, position)
    ]
