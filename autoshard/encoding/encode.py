"""The only door to `solvers`: the planning problem as integers.

One node per op, one choice per candidate. A node costs the op's own time; an edge costs the
reshard of one operand. A value that several ops read has a node too: the sharding it is read in.
Memory terms hold bytes per device over op indices. Costs are picoseconds.
`encoded.decode` reads the answer back: `decode(encoded, result.choices)`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from autoshard.backend_habits import (
    COPIES_OF_TURNED,
    counts_equal_moves_once,
    keeps_order_of_gathers,
    row_lanes,
)
from autoshard.candidates.candidate import MAX_CANDIDATES, Candidate
from autoshard.candidates.op_candidates import OpCandidates, place_of
from autoshard.candidates.rounds import ONLY_ROUND, Round
from autoshard.candidates.streamed import stream_offers
from autoshard.costing.costing import Costing
from autoshard.costing.read_bits import ReadBits
from autoshard.encoding.choice_memory import ChoiceMemory, reversed_kernels
from autoshard.encoding.copy_memory import CopyMemory
from autoshard.encoding.cut_sums import CutSums
from autoshard.encoding.device_room import DeviceRoom
from autoshard.encoding.encoded import Encoded, TableKey
from autoshard.encoding.joined_sums import JoinedSums
from autoshard.encoding.shared_reads import SharedRead, reads_of, shared_reads, updating_reads
from autoshard.encoding.sums_after_loops import SumsAfterLoops
from autoshard.encoding.table_facts import TableFacts
from autoshard.encoding.with_steps import WithSteps
from autoshard.graph.buffers import Buffers
from autoshard.graph.program import PRODUCTS, Graph, Op, OpClass, OpKind
from autoshard.layouts import Layout
from autoshard.overlap.hidden import (
    NOTHING_HIDDEN,
    Hidden,
    exposed_seconds,
    hidden_behind_computing,
    hidden_in_products,
    hidden_sums,
)
from autoshard.reshard import Resharder, ReshardTable, widens_rows
from autoshard.sharding import format_sharding
from autoshard.wishes.pinned import Pin
from autoshard.wishes.ties import Tie, TiedTensor, constrained_arguments, refuse_clashes, unequal
from autoshard.wishes.wishes import Wishes as Wishes
from solvers import FORBIDDEN, Edge, EdgeMemory, Problem

IntArray = npt.NDArray[np.int64]

PICOSECONDS = 1e12


@dataclass(slots=True)
class Encoder:
    """Builds the choice problem of one program on one mesh.

    Args:
        graph: The program.
        buffers: Its storage.
        costing: Prices on this mesh.
        wishes: What the user asked for.
        memory_limit: Bytes one device may hold, or None for no limit.
        max_candidates: Most ways to cut that one op is offered.
        round: What holds in this round of planning.
        streamable: Paths of the `dot_general` equations that may run in steps.
        is_scarce: Whether memory is: then equal moves of a value are counted as the one copy that
            they become.

    Attributes:
        room: How tensors lie in the memory of a device.
    """

    graph: Graph
    buffers: Buffers
    costing: Costing
    wishes: Wishes
    memory_limit: int | None
    max_candidates: int = MAX_CANDIDATES
    round: Round = ONLY_ROUND
    streamable: frozenset[str] = frozenset()
    is_scarce: bool = False
    _resharder: Resharder = field(init=False)
    _candidates: dict[int, tuple[Candidate, ...]] = field(default_factory=dict)
    _tables: dict[TableKey, ReshardTable] = field(default_factory=dict)
    _read_bits: ReadBits = field(init=False)
    _indices: dict[tuple[int, bool, int, int], tuple[object, IntArray]] = field(
        default_factory=dict
    )
    _read_columns: dict[tuple[tuple[Layout, ...], int], IntArray] = field(default_factory=dict)
    _costs: dict[tuple[int, ...], tuple[object, IntArray]] = field(default_factory=dict)
    _alike: dict[int, tuple[Hashable, ...]] = field(default_factory=dict)
    _own_costs: dict[Hashable, IntArray] = field(default_factory=dict)
    _seconds: dict[Hashable, tuple[Candidate, float, float]] = field(default_factory=dict)
    _orders: dict[tuple[int, bool, bool, float], npt.NDArray[np.float64]] = field(
        default_factory=dict
    )
    _narrowed: dict[tuple[int, float], npt.NDArray[np.float64]] = field(default_factory=dict)
    room: DeviceRoom = field(init=False)
    _facts: TableFacts = field(init=False)
    _copies: CopyMemory = field(init=False)

    def __post_init__(self) -> None:
        self._resharder = Resharder(self.costing.parts, self.costing)
        self._read_bits = ReadBits.of(self.graph, self._backend)
        self.room = DeviceRoom.of(
            self.graph, self.buffers, self.costing, self.wishes, self.memory_limit
        )
        self._facts = TableFacts(self.costing.parts)
        self._copies = CopyMemory(self.room, self._facts)

    @property
    def _backend(self) -> str:
        return self.costing.model.hardware.backend

    def encode(self) -> Encoded:
        """Enumerate, price and assemble."""
        offers = OpCandidates(
            self.graph,
            self.costing.parts,
            self.wishes,
            self._backend,
            self.max_candidates,
            self.round,
        )
        nodes = [op for op in self.graph.ops if offers.has_choice(op)]
        with_steps = self._with_steps()
        sums = SumsAfterLoops.of(self.graph, self._backend)
        joined = JoinedSums.of(self.graph, self._backend)
        for op in nodes:
            offered = sums.offered(op, with_steps.of(op, offers.of(op)))
            self._candidates[op.index] = joined.offered(op, offered)
        self._make_tables(nodes, offers)
        node_by_op = {op.index: node for node, op in enumerate(nodes)}
        own_costs = {op.index: self._node_costs(op) for op in nodes}
        hidden = self._hidden(own_costs)
        updates = updating_reads(self.graph, self.wishes.alike)
        reads = tuple(
            shared_reads(
                self.graph,
                self.buffers,
                self._candidates,
                self._read_bits,
                updates,
                reversed_kernels(self.graph, self._backend),
            )
        )
        if self.is_scarce and counts_equal_moves_once(self._backend):
            reads = tuple(self._apart_for_one(read) for read in reads)
        elsewhere = {*sums.by_op, *joined.by_second, *(one.first.op for one in joined)}
        cut = self._cut_sums(reads, elsewhere)
        edges, copies = self._edges(nodes, node_by_op, reads, cut, hidden)
        edges += self._ties(node_by_op, offers.pins)
        edges += self._sums_in_loops(sums, node_by_op)
        edges += self._sums_apart(joined, node_by_op)
        exposed = (self._exposed(op, own_costs[op.index], hidden) for op in nodes)
        free = (np.zeros(len(read.layouts), dtype=np.int64) for read in reads)
        memory = ChoiceMemory(
            self.room,
            self.wishes.alike,
            self._candidates,
            node_by_op,
            self._read_bits.written(self.buffers.with_products),
        )
        problem = Problem(
            node_costs=(*exposed, *free),
            edges=tuple(edges),
            node_memory=tuple(memory.terms()),
            edge_memory=tuple(copies),
            memory_limit=self.memory_limit,
        )
        return Encoded(
            problem,
            self.graph,
            self.costing.parts,
            tuple(op.index for op in nodes),
            tuple(self._candidates[op.index] for op in nodes),
            self._tables,
            node_by_op,
            self._read_bits,
            reads,
            sums,
            joined,
            cut,
        )

    def _sums_in_loops(self, sums: SumsAfterLoops, node_by_op: Mapping[int, int]) -> Iterator[Edge]:
        """What sums cost more that stay in their loop, as they are added up in another layout."""
        for one in sums:
            if one.op not in node_by_op or one.add not in node_by_op:
                continue
            op = self.graph.ops[one.op]
            made, added = self._candidates[one.op], self._candidates[one.add]
            after = self.costing.reduction_seconds(self.graph, op, made)
            inside = self.costing.reduction_seconds(self.graph, op, sums.in_loop(made))
            more = _picoseconds((inside - after) * op.repeat)
            stays = ~sums.leaves(one, made, added)
            yield Edge(node_by_op[one.op], node_by_op[one.add], np.where(stays, more[:, None], 0))

    def _sums_apart(self, joined: JoinedSums, node_by_op: Mapping[int, int]) -> Iterator[Edge]:
        """What sums cost that are not taken with those of the result they are added to."""
        for one in joined:
            if one.first.op not in node_by_op or one.second.op not in node_by_op:
                continue
            op = self.graph.ops[one.second.op]
            firsts, seconds = self._candidates[one.first.op], self._candidates[op.index]
            key = ("apart", id(firsts), one.first.order, one.second.order, *self._like(op))
            if key not in self._own_costs:
                own = self.costing.reduction_seconds(self.graph, op, joined.apart(seconds))
                self._own_costs[key] = _picoseconds(own * op.repeat)
            more = self._own_costs[key]
            node = node_by_op[op.index]
            key = ("joined", one.first.addend_at < 0, one.second.addend_at < 0, *key)
            if key not in self._own_costs:
                are_joined = joined.are_joined(one, firsts, seconds)
                self._own_costs[key] = np.where(are_joined, 0, more)
            yield Edge(node_by_op[one.first.op], node, self._own_costs[key])
            if one.first.addend_at in node_by_op:
                are_whole = joined.are_whole(self._candidates[one.first.addend_at], seconds)
                addition = node_by_op[one.first.addend_at]
                yield Edge(addition, node, np.where(are_whole, 0, more))

    def _cut_sums(self, reads: Sequence[SharedRead], elsewhere: Set[int]) -> CutSums:
        """Sums that are taken whole where they are cut further, on machines that scatter any."""
        if not self.costing.model.hardware.has_reduce_scatter:
            return CutSums()
        return CutSums.of(self.graph, self._candidates, reads, elsewhere)

    def _apart_for_one(self, read: SharedRead) -> SharedRead:
        """The same, with a choice of the reader that holds a copy for itself where it matters."""
        is_small = self.graph.values[read.value].num_bytes < self.room.negligible_bytes
        return read if is_small or not read.common else read.for_each_reader()

    def _with_steps(self) -> WithSteps:
        is_only_round = self.round is ONLY_ROUND
        equations = self.streamable if is_only_round else frozenset()
        held = self.buffers.most_held_bytes(self.graph)
        parts, limit = self.costing.parts, self.memory_limit
        offers = stream_offers(self.graph, parts, equations, limit, held)
        return WithSteps(offers, self.costing, self.buffers, self.max_candidates)

    # -- reshards -------------------------------------------------------------------------------

    def _make_tables(self, nodes: list[Op], offers: OpCandidates) -> None:
        """All-pairs tables by tensor type, over every layout some op may give or want.

        There is one more for every narrower type that the elements are sent in.
        """
        universe: dict[tuple[tuple[int, ...], int], dict[Layout, None]] = {}
        seen: set[tuple[int, bool, int, tuple[int, ...], int]] = set()
        for op in nodes:
            candidates = self._candidates[op.index]
            for is_result, values in ((False, op.operands), (True, op.results)):
                for position, value in enumerate(values):
                    key = self._type(value)
                    if not key[0]:
                        continue
                    mark = (id(candidates), is_result, position, *key)
                    if mark in seen:
                        continue
                    seen.add(mark)
                    layouts = universe.setdefault(key, {})
                    for candidate in candidates:
                        layouts.setdefault(candidate.side(is_result=is_result)[position])
        narrower = self._narrower()
        for (shape, bits), layouts in universe.items():
            for candidate in offers.of_shape(shape):
                layouts.setdefault(candidate.results[0])
            known = tuple(sorted(layouts))
            for sent in {bits, *narrower.get((shape, bits), ())}:
                self._tables[shape, bits, sent] = self._resharder.table(known, shape, sent)

    def _narrower(self) -> dict[tuple[tuple[int, ...], int], set[int]]:
        """By tensor type, the narrower widths that some of its elements are sent in."""
        found: dict[tuple[tuple[int, ...], int], set[int]] = {}
        for (op, position), bits in self._read_bits.narrowed.items():
            found.setdefault(self._type(self.graph.ops[op].operands[position]), set()).add(bits)
        return found

    def _table(self, value: int, bits: int | None = None) -> ReshardTable:
        """Reshards of a value; of elements as they lie, if not said otherwise."""
        shape, own = self._type(value)
        return self._tables[shape, own, own if bits is None else bits]

    def _type(self, value: int) -> tuple[tuple[int, ...], int]:
        found = self.graph.values[value]
        return found.shape, found.bits

    def _layout_indices(
        self, candidates: tuple[Candidate, ...], is_result: bool, position: int, value: int
    ) -> IntArray:
        table = self._table(value)
        key = (id(candidates), is_result, position, id(table))
        found = self._indices.get(key)
        if found is None:
            indices = np.array(
                [table.index[c.side(is_result=is_result)[position]] for c in candidates],
                dtype=np.int64,
            )
            found = (candidates, indices)
            self._indices[key] = found
        return found[1]

    def _edges(
        self,
        nodes: list[Op],
        node_by_op: Mapping[int, int],
        reads: Sequence[SharedRead],
        cut: CutSums,
        hidden: Hidden,
    ) -> tuple[list[Edge], list[EdgeMemory]]:
        edges: list[Edge] = []
        copies: list[EdgeMemory] = []
        sources: dict[tuple[int, int], tuple[int, IntArray]] = {}  # of a read: node, its layouts
        for node, read in enumerate(reads, start=len(nodes)):
            maker, rows = self._making(read.value, node_by_op)
            table = self._table(read.value, read.bits)
            columns = self._read_indices(read)
            slack = hidden.reads.get(read.reads[0], 0.0)
            costs = self._edge_costs(table, rows, columns, read.repeat, slack)
            first, place = read.reads[0]
            costs = self._with_narrowing(costs, self.graph.ops[first], place, rows, columns)
            costs = self._with_order(costs, self.graph.ops[first], place, rows, columns)
            costs = self._with_whole_sums(costs, cut, read.value, (first, place), rows, columns)
            edges.append(Edge(maker, node, costs))
            times = {index for index, _ in read.reads} | {read.stop - 1}
            is_brief = self.room.on_chip.is_brief(self.graph.ops[read.start], times)
            usage = self._copies.of_move(
                table, rows, columns, read.value, read.bits, is_brief=is_brief
            )
            if usage is not None:
                copies.append(EdgeMemory(len(edges) - 1, read.start, read.stop, usage))
            copies += self._copies.of_turned(
                len(edges) - 1, read.start, table, rows, columns, read.value
            )
            sources.update(dict.fromkeys(read.reads, (node, columns)))
        firsts = {read.reads[0] for read in reads}
        for op in nodes:
            for position, value in enumerate(op.operands):
                producer = self.graph.ops[self.graph.values[value].op]
                if producer.index not in node_by_op or producer.index == op.index:
                    continue
                if not self.graph.values[value].shape:
                    continue
                source = sources.get((op.index, position))
                node, rows = source or self._making(value, node_by_op)
                columns = self._layout_indices(self._candidates[op.index], False, position, value)
                bits = self._read_bits.to(op, position)
                table = self._table(value, bits)
                is_given = (op.index, position) in firsts  # to the move for all readers
                slack = 0.0 if is_given else hidden.reads.get((op.index, position), 0.0)
                costs = self._edge_costs(table, rows, columns, reads_of(op, position), slack)
                costs = self._with_narrowing(costs, op, position, rows, columns)
                earlier = _earlier_reads(op, position)
                if earlier:  # what one read of the op needs moved is there for its other reads
                    shared = self._shared_reads(op, value, columns, earlier)
                    if shared.all():
                        continue
                    costs = np.where(shared, 0, costs)
                costs = self._with_order(costs, op, position, rows, columns)
                if _is_unstacked(op, producer):
                    costs = self._where_made(costs, table, rows, columns)
                if source is None:
                    read_at = (op.index, position)
                    costs = self._with_whole_sums(costs, cut, value, read_at, rows, columns)
                edges.append(Edge(node, node_by_op[op.index], costs))
                copy = self._copies.of_operand(op, table, rows, columns, value, bits)
                if copy is not None:
                    copy = replace(copy, edge=len(edges) - 1)
                    read_with = None if source is None else reads[node - len(nodes)]
                    copies += self._copies.of_reader(copy, op, read_with, table, columns)
                copies += self._copies.of_turned(
                    len(edges) - 1, op.index, table, rows, columns, value
                )
                if producer.op_class is OpClass.SCATTER and source is None:
                    made = self._candidates[producer.index]
                    added = self._candidates[op.index]
                    copies += self._copies.of_scatter(len(edges) - 1, producer, made, op, added)
        return edges, copies

    def _making(self, value: int, node_by_op: Mapping[int, int]) -> tuple[int, IntArray]:
        """The node that makes a value, and the layout of each of its choices."""
        maker = self.graph.ops[self.graph.values[value].op]
        place = maker.results.index(value)
        indices = self._layout_indices(self._candidates[maker.index], True, place, value)
        return node_by_op[maker.index], indices

    def _read_indices(self, read: SharedRead) -> IntArray:
        table = self._table(read.value)
        key = (read.layouts, id(table))
        found = self._read_columns.get(key)
        if found is None:
            found = np.array([table.index[layout] for layout in read.layouts], dtype=np.int64)
            self._read_columns[key] = found
        return found

    def _shared_reads(
        self, op: Op, value: int, columns: IntArray, earlier: list[int]
    ) -> npt.NDArray[np.bool_]:
        """bool[num_candidates]: whether an earlier read of the same value has the same need."""
        candidates = self._candidates[op.index]
        reads = [self._layout_indices(candidates, False, place, value) for place in earlier]
        shared: npt.NDArray[np.bool_] = np.any([read == columns for read in reads], axis=0)
        return shared

    def _edge_costs(
        self, table: ReshardTable, rows: IntArray, columns: IntArray, repeat: float, slack: float
    ) -> IntArray:
        key = (id(table), id(rows), id(columns), hash((repeat, slack)))
        found = self._costs.get(key)
        if found is None:
            seconds = exposed_seconds(table.seconds[np.ix_(rows, columns)], slack)
            found = ((table, rows, columns), _picoseconds(seconds * repeat))
            self._costs[key] = found
        return found[1]

    def _with_narrowing(
        self, costs: IntArray, op: Op, position: int, rows: IntArray, columns: IntArray
    ) -> IntArray:
        """What an operand costs with what narrows it before it is sent."""
        narrowed = self.narrowing_seconds(op, position)
        if narrowed is None:
            return costs
        repeat = reads_of(op, position)
        key = (id(costs), id(narrowed), id(rows), id(columns), hash(repeat))
        found = self._costs.get(key)
        if found is None:
            table = self._table(op.operands[position], self._read_bits.to(op, position))
            start = self._facts.sent_from(table)[np.ix_(rows, columns)]
            more = _picoseconds(np.where(start < 0, 0.0, narrowed[start]) * repeat)
            found = self._costs[key] = ((costs, narrowed, rows, columns), costs + more)
        return found[1]

    def narrowing_seconds(self, op: Op, position: int) -> npt.NDArray[np.float64] | None:
        """float64[num_layouts]: narrowing a piece of an operand that is then sent, by its layout.

        None for what is sent as it lies. Layouts are those of the operand's table.
        """
        value, bits = op.operands[position], self._read_bits.to(op, position)
        if op.kind is not OpKind.COMPUTE or not self.graph.values[value].shape:
            return None
        found = self.costing.narrowed_to_send(self.graph, self.buffers, value, bits)
        if found is None:
            return None
        table = self._table(value, bits)
        key = (id(table), found.num_bytes)
        if key not in self._narrowed:
            self._narrowed[key] = self.costing.narrowing_seconds(found, table.layouts)
        return self._narrowed[key]

    def _with_order(
        self, costs: IntArray, op: Op, position: int, rows: IntArray, columns: IntArray
    ) -> IntArray:
        """What an operand costs with the copies it takes into another order of dimensions."""
        order = self.order_seconds(op, op.operands[position])
        if order is None:
            return costs
        repeat = reads_of(op, position)
        key = (id(costs), id(order), id(rows), id(columns), hash(repeat))
        found = self._costs.get(key)
        if found is None:
            more = _picoseconds(order[np.ix_(rows, columns)] * repeat)
            found = self._costs[key] = ((costs, order, rows, columns), costs + more)
        return found[1]

    def _where_made(
        self, costs: IntArray, table: ReshardTable, rows: IntArray, columns: IntArray
    ) -> IntArray:
        """What an operand costs that nothing can move, where there is a choice."""
        moves = self._facts.moves(table)[np.ix_(rows, columns)]
        if moves.all(axis=0).any() or moves.all(axis=1).any():
            return costs
        return np.where(moves, FORBIDDEN, costs)

    def _with_whole_sums(
        self,
        costs: IntArray,
        cut: CutSums,
        value: int,
        read: tuple[int, int],
        rows: IntArray,
        columns: IntArray,
    ) -> IntArray:
        """What a read costs with the sum taken whole that it cuts further than it is scattered."""
        maker = self.graph.ops[self.graph.values[value].op]
        if cut.reads.get(maker.index) != read:
            return costs
        more = self._whole_sums(maker)
        key = (id(costs), id(more))
        found = self._costs.get(key)
        if found is None:
            further = ~self._facts.moves(self._table(value))[np.ix_(rows, columns)]
            further &= rows[:, None] != columns
            charged = costs + np.where(further, more[:, None], 0)
            found = self._costs[key] = ((costs, more), charged)
        return found[1]

    def _whole_sums(self, op: Op) -> IntArray:
        """int64[num_candidates]: what sums taken whole cost more than scattered ones."""
        candidates = self._candidates[op.index]
        calls = self.costing.sums_in_call(self.graph, op)
        order = self.costing.made_order(self.graph, op)
        kind = (op.op_class, op.repeat, self._type(op.results[0]))
        key = ("whole", id(candidates), *kind, calls, order)
        found = self._own_costs.get(key)
        if found is None:
            more = self.costing.whole_sum_seconds(self.graph, op, candidates)
            found = self._own_costs[key] = _picoseconds(more * op.repeat)
        return found

    def order_seconds(self, op: Op, value: int) -> npt.NDArray[np.float64] | None:
        """float64[num_layouts, num_layouts]: copies of what comes out of a move out of order.

        None where the reader takes it in any order of dimensions. What is read in narrow rows is
        copied into them. Loops wait for slices of what comes out of a move. Rows and columns are
        those of the value's table.
        """
        found = self.graph.values[value]
        is_turned = op.name == "transpose"
        if op.op_class in PRODUCTS or not keeps_order_of_gathers(self._backend):
            return None
        if len(found.shape) < 2:
            return None
        table = self._table(value)
        in_rows = self.costing.is_in_rows(self.graph, value)
        waited = self.costing.waiting_seconds(self.graph, self.buffers, value)
        known = self._orders.get((id(table), is_turned, in_rows, waited))
        if known is None:
            num_bytes = 2.0 * found.num_bytes / self._facts.pieces(table)
            copied = (
                self._facts.moves(table)
                if is_turned
                else widens_rows(table, self.costing.parts, found.shape, row_lanes(self._backend))
            )
            copies = 1 if is_turned else COPIES_OF_TURNED
            known = np.where(copied, copies * self.costing.copy_seconds(num_bytes), 0.0)
            if in_rows:
                copied_rows = self.costing.row_copy_seconds(self.graph, value, table.layouts)
                known = np.maximum(known, np.where(self._facts.moves(table), copied_rows, 0.0))
            known = known + np.where(self._facts.moves(table), waited, 0.0)
            self._orders[id(table), is_turned, in_rows, waited] = known
        return known if known.any() else None

    # -- ties -----------------------------------------------------------------------------------

    def _ties(
        self, node_by_op: Mapping[int, int], pins: Mapping[int, Mapping[int, Pin]]
    ) -> list[Edge]:
        ends: dict[tuple[int, bool, int], TiedTensor] = {}

        def end(op: Op, value: int) -> TiedTensor:
            key = (op.index, bool(op.results), place_of(op, value))
            if key not in ends:
                layouts = tuple(
                    c.side(is_result=key[1])[key[2]] for c in self._candidates[op.index]
                )
                ends[key] = TiedTensor(
                    node_by_op[op.index],
                    layouts,
                    self._end_label(op, value, pins),
                    is_asked=value in pins.get(op.index, {}),
                )
            return ends[key]

        ties = []
        for group in self.graph.groups:
            makers = [self.graph.ops[self.graph.values[v].op] for v in group]
            held = [end(o, v) for o, v in zip(makers, group, strict=True) if o.index in node_by_op]
            ties += [Tie(a, b, "one shard_alike group") for a, b in pairwise(held)]
        arguments, results = self.graph.arguments, self.graph.results
        for argument, result in self.wishes.alike:
            u, v = arguments[argument], results[result]
            if u.index in node_by_op and v.index in node_by_op:
                reason = "an argument given up (donated) and the result that replaces it"
                ties.append(Tie(end(u, u.results[0]), end(v, v.operands[0]), reason))
        for wish in self.wishes.groups:
            members = [(self.graph.ops[op], value) for op, value in wish.members]
            held = [end(op, value) for op, value in members if op.index in node_by_op]
            ties += [Tie(a, b, wish.said) for a, b in pairwise(held)]
        for u, v in constrained_arguments(self.graph, self.wishes):
            if u.index in node_by_op and v.index in node_by_op:
                a, b = end(u, u.results[0]), end(v, v.results[0])
                if not set(a.layouts).isdisjoint(b.layouts):  # not on another mesh
                    name = self.graph.values[u.results[0]].name
                    ties.append(Tie(a, b, f"the sharding constraint that alone reads {name}"))
        refuse_clashes(ties)
        return [
            Edge(a.node, b.node, unequal(a.layouts, b.layouts, FORBIDDEN))
            for a, b in ((tie.first, tie.second) for tie in ties)
            if a.node != b.node
        ]

    def _end_label(self, op: Op, value: int, pins: Mapping[int, Mapping[int, Pin]]) -> str:
        pin = pins.get(op.index, {}).get(value)
        if pin is not None:
            return f"{pin.where} is asked to be {format_sharding(pin.sharding)}"
        found = self.graph.values[value]
        name = found.name or f"{op.name} at {op.source or 'unknown line'}"
        count = len(self._candidates[op.index])
        return f"{name}: {found.type_text} can be sharded in {count} ways"

    # -- nodes ----------------------------------------------------------------------------------

    def _node_costs(self, op: Op) -> IntArray:
        """int64[num_candidates]; equal ops (of repeated layers) share one array."""
        key = self._like(op)
        found = self._own_costs.get(key)
        if found is None:
            candidates = self._candidates[op.index]
            seconds = self.costing.candidate_seconds(self.graph, self.buffers, op, candidates)
            found = _picoseconds(seconds * op.repeat)
            self._own_costs[key] = found
        return found

    def seconds_of(self, op: Op, candidate: Candidate) -> tuple[float, float]:
        """Seconds that one run of an op computes, and that it communicates by itself."""
        key = (id(candidate), *self._like(op))
        known = self._seconds.get(key)
        if known is None:
            costing, one = self.costing, (candidate,)
            total = float(costing.candidate_seconds(self.graph, self.buffers, op, one)[0])
            sent = float(costing.reduction_seconds(self.graph, op, one)[0])
            sent += float(costing.written_seconds(self.graph, op, one)[0])
            if candidate.streamed is not None:
                sent += costing.streamed_seconds(self.graph, op, candidate)[1]
            known = self._seconds[key] = (candidate, total - sent, sent)
        return known[1:]

    def _like(self, op: Op) -> tuple[Hashable, ...]:
        """The same for ops whose candidates cost the same."""
        known = self._alike.get(op.index)
        if known is None:
            known = self._alike[op.index] = self._priced_by(op)
        return known

    def _priced_by(self, op: Op) -> tuple[Hashable, ...]:
        """All that the costs of its candidates depend on."""
        values = (*op.operands, *op.results)
        return (
            id(self._candidates[op.index]),
            op.kind,
            op.name,
            op.flops,
            op.repeat,
            op.collective,
            op.declared,
            tuple((self._type(v), self.graph.values[v].dtype) for v in values),
            self.buffers.reads[op.index],
            self.costing.border_bytes(self.graph, op),
            self.costing.sums_in_call(self.graph, op),
            self.costing.rows_of(self.graph, op),
            self.costing.is_in_other_kernel(self.graph, self.buffers, op),
            self.costing.waiting_seconds(self.graph, self.buffers, op.results[0])
            if op.results
            else 0.0,
            self.costing.chip_places(self.graph, self.buffers, op),
            self.costing.with_product(self.graph, self.buffers, op),
            tuple(self.buffers.is_stored[v] for v in op.results),
            tuple(self.buffers.owner[v] == v for v in op.results),
        )

    def _hidden(self, own_costs: Mapping[int, IntArray]) -> Hidden:
        """What runs beside computing, where the backend does that."""
        if not self.costing.overlaps:
            return NOTHING_HIDDEN
        least = {
            index: float(costs.min()) / PICOSECONDS / max(self.graph.ops[index].repeat, 1e-9)
            for index, costs in own_costs.items()
            if self.graph.ops[index].kind is OpKind.COMPUTE
        }
        return hidden_behind_computing(
            self.graph, self.costing, self._candidates, least, self._read_bits
        )

    def _exposed(self, op: Op, costs: IntArray, hidden: Hidden) -> IntArray:
        """The costs of an op without what it sends beside computing: its sums, or its pieces."""
        slack = hidden.sums.get(op.index, 0.0)
        candidates = self._candidates[op.index]
        passes = self.costing.overlaps and candidates[-1].streamed is not None
        if not slack and not passes:
            return costs
        key = ("exposed", id(costs), slack, op.repeat)
        found = self._own_costs.get(key)
        if found is None:
            off = hidden_sums(self.graph, self.costing, op, candidates, slack)
            if passes:
                off += hidden_in_products(self.graph, self.costing, op, candidates)
            off *= op.repeat
            found = np.where(costs < FORBIDDEN, costs - _picoseconds(off), costs)
            self._own_costs[key] = found
        return found


def _is_unstacked(op: Op, producer: Op) -> bool:
    """Whether an op drops the dimension that its own equation sliced: no pin goes between."""
    is_in_one = op.name == "reshape" and op.equation == producer.equation
    return is_in_one and producer.name == "slice" and op.equation != ""


def _earlier_reads(op: Op, position: int) -> list[int]:
    """Earlier operands of an op that are the same value, read as often."""
    return [
        place
        for place in range(position)
        if op.operands[place] == op.operands[position]
        and reads_of(op, place) == reads_of(op, position)
    ]


def _picoseconds(seconds: npt.NDArray[np.float64]) -> IntArray:
    scaled = np.where(np.isfinite(seconds), seconds * PICOSECONDS, float(FORBIDDEN))
    return np.minimum(np.rint(scaled), float(FORBIDDEN)).astype(np.int64)
