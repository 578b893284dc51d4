"""The only door to `solvers`: the planning problem as integers, and the answer back as layouts.

One node per op, one choice per candidate. A node costs the op's own time; an edge costs the
reshard of one operand. A value that several ops read has a node too: the sharding it is read in.
Memory terms hold bytes per device over op indices. Costs are picoseconds.
Encode and decode are a pair: `decode(encoded, result.choices)`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, product, takewhile
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from autoshard.backend_habits import (
    COPIES_OF_TURNED,
    copies_convolution_gradients,
    keeps_order_of_gathers,
    on_chip_bytes,
    row_lanes,
    temporary_overhead,
    turns_gathers,
)
from autoshard.candidates.candidate import MAX_CANDIDATES, Candidate
from autoshard.candidates.op_candidates import OpCandidates, place_of
from autoshard.candidates.rounds import ONLY_ROUND, Round
from autoshard.candidates.streamed import stream_offers
from autoshard.costing.costing import Costing
from autoshard.costing.read_bits import ReadBits, copies_for_loops
from autoshard.encoding.joined_sums import JoinedSums
from autoshard.encoding.on_chip import OnChip
from autoshard.encoding.padded_rows import padded_row_bytes
from autoshard.encoding.shared_reads import SharedRead, reads_of, shared_reads, updating_reads
from autoshard.encoding.sums_after_loops import SumsAfterLoops
from autoshard.encoding.with_steps import WithSteps
from autoshard.graph.buffers import Buffers, read_stop
from autoshard.graph.program import PRODUCTS, Graph, Op, OpClass, OpKind, Value
from autoshard.layouts import Layout, MeshParts
from autoshard.overlap.hidden import (
    NOTHING_HIDDEN,
    Hidden,
    exposed_seconds,
    hidden_behind_computing,
    hidden_in_products,
    hidden_sums,
)
from autoshard.reshard import Resharder, ReshardTable, turned_shares, widens_rows
from autoshard.sharding import format_sharding
from autoshard.wishes.pinned import Pin
from autoshard.wishes.ties import Tie, TiedTensor, constrained_arguments, refuse_clashes, unequal
from autoshard.wishes.wishes import Wishes as Wishes
from solvers import FORBIDDEN, Edge, EdgeMemory, NodeMemory, Problem

IntArray = npt.NDArray[np.int64]

PICOSECONDS = 1e12
NEGLIGIBLE_SHARE = 1e-4  # buffers below this share of the budget are not worth a memory term
NEGLIGIBLE_SHARE_HELD = 1e-2  # nor below this one of the arguments, all of them cut evenly

TableKey: TypeAlias = tuple[tuple[int, ...], int, int]
"""Of a table of reshards: shape, bits of an element as it lies, bits as it is sent."""


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """A planning problem ready to solve, and what is needed to read its answer."""

    problem: Problem
    graph: Graph
    parts: MeshParts
    ops: tuple[int, ...]  # per node, its op; nodes of shared reads come after these
    candidates: tuple[tuple[Candidate, ...], ...]  # per node of an op
    tables: Mapping[TableKey, ReshardTable]
    node_by_op: Mapping[int, int]
    read_bits: ReadBits
    reads: tuple[SharedRead, ...] = ()  # per node after those of ops
    sums: SumsAfterLoops = field(default_factory=SumsAfterLoops)
    joined: JoinedSums = field(default_factory=JoinedSums)

    def table(self, value: int, bits: int) -> ReshardTable:
        """Reshards of a value, with so many bits of an element sent."""
        found = self.graph.values[value]
        return self.tables[found.shape, found.bits, bits]

    def is_argument(self, term: NodeMemory) -> bool:
        """Whether it is what an argument takes itself, which is there from the start."""
        return self.maker(term.node).kind is OpKind.ARGUMENT and term.start == 0

    def maker(self, node: int) -> Op:
        """The op of a node; of a shared read, the one that makes the value."""
        if node < len(self.ops):
            return self.graph.ops[self.ops[node]]
        value = self.reads[node - len(self.ops)].value
        return self.graph.ops[self.graph.values[value].op]


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
    """

    graph: Graph
    buffers: Buffers
    costing: Costing
    wishes: Wishes
    memory_limit: int | None
    max_candidates: int = MAX_CANDIDATES
    round: Round = ONLY_ROUND
    streamable: frozenset[str] = frozenset()
    _resharder: Resharder = field(init=False)
    _candidates: dict[int, tuple[Candidate, ...]] = field(default_factory=dict)
    _tables: dict[TableKey, ReshardTable] = field(default_factory=dict)
    _read_bits: ReadBits = field(init=False)
    _indices: dict[tuple[int, bool, int, int], tuple[object, IntArray]] = field(
        default_factory=dict
    )
    _read_columns: dict[tuple[tuple[Layout, ...], int], IntArray] = field(default_factory=dict)
    _costs: dict[tuple[int, ...], tuple[object, IntArray]] = field(default_factory=dict)
    _own_costs: dict[Hashable, IntArray] = field(default_factory=dict)
    _moves: dict[int, npt.NDArray[np.bool_]] = field(default_factory=dict)  # by id of the table
    _turns: dict[int, npt.NDArray[np.float64]] = field(default_factory=dict)  # likewise
    _orders: dict[tuple[int, bool], npt.NDArray[np.float64]] = field(default_factory=dict)
    _reused: set[int] = field(init=False)
    _on_chip: OnChip = field(init=False)
    _negligible_bytes: float = field(init=False)

    def __post_init__(self) -> None:
        self._resharder = Resharder(self.costing.parts, self.costing)
        self._read_bits = ReadBits.of(self.graph, self._backend)
        self._reused = self._reused_results()
        room = on_chip_bytes(self.costing.model.hardware)
        self._on_chip = OnChip.of(self.graph, self.buffers, room)
        self._negligible_bytes = self._find_negligible_bytes()

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
            shared_reads(self.graph, self.buffers, self._candidates, self._read_bits, updates)
        )
        edges, copies = self._edges(nodes, node_by_op, reads, hidden)
        edges += self._ties(node_by_op, offers.pins)
        edges += self._sums_in_loops(sums, node_by_op)
        edges += self._sums_apart(joined, node_by_op)
        exposed = (self._exposed(op, own_costs[op.index], hidden) for op in nodes)
        free = (np.zeros(len(read.layouts), dtype=np.int64) for read in reads)
        problem = Problem(
            node_costs=(*exposed, *free),
            edges=tuple(edges),
            node_memory=tuple(self._node_memory(node_by_op)),
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
            own = self.costing.reduction_seconds(self.graph, op, joined.apart(seconds))
            more = _picoseconds(own * op.repeat)
            node = node_by_op[op.index]
            are_joined = joined.are_joined(one, firsts, seconds)
            yield Edge(node_by_op[one.first.op], node, np.where(are_joined, 0, more))
            if one.first.addend_at in node_by_op:
                are_whole = joined.are_whole(self._candidates[one.first.addend_at], seconds)
                addition = node_by_op[one.first.addend_at]
                yield Edge(addition, node, np.where(are_whole, 0, more))

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
            costs = self._with_order(costs, self.graph.ops[first], place, rows, columns)
            edges.append(Edge(maker, node, costs))
            times = {index for index, _ in read.reads} | {read.stop - 1}
            is_brief = self._on_chip.is_brief(self.graph.ops[read.start], times)
            usage = self._copy_bytes(table, rows, columns, read.value, read.bits, is_brief=is_brief)
            if usage is not None:
                copies.append(EdgeMemory(len(edges) - 1, read.start, read.stop, usage))
            copies += self._turned(len(edges) - 1, read.start, table, rows, columns, read.value)
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
                earlier = _earlier_reads(op, position)
                if earlier:  # what one read of the op needs moved is there for its other reads
                    shared = self._shared_reads(op, value, columns, earlier)
                    if shared.all():
                        continue
                    costs = np.where(shared, 0, costs)
                costs = self._with_order(costs, op, position, rows, columns)
                edges.append(Edge(node, node_by_op[op.index], costs))
                copy = self._copy(op, table, rows, columns, value, bits)
                if copy is not None:
                    copies.append(replace(copy, edge=len(edges) - 1))
                copies += self._turned(len(edges) - 1, op.index, table, rows, columns, value)
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

    def _copy(
        self, op: Op, table: ReshardTable, rows: IntArray, columns: IntArray, value: int, bits: int
    ) -> EdgeMemory | None:
        """Memory that a reshard of an operand takes, for an edge still to be numbered."""
        owner = self.buffers.owner[value]
        if op.kind is OpKind.RESULT and owner in self._reused:
            usage = self._outgrown_bytes(table, rows, columns, value)
            return None if usage is None else EdgeMemory(-1, *self.buffers.intervals[owner], usage)
        stop = (
            len(self.graph.ops)
            if op.kind is OpKind.RESULT
            else read_stop(self.graph, self.buffers, op)
        )
        is_brief = self._on_chip.is_brief(op, {op.index, stop - 1})
        usage = self._copy_bytes(table, rows, columns, value, bits, is_brief=is_brief)
        if usage is None:
            return None
        return EdgeMemory(-1, self.buffers.time_of(op.index), stop, usage)

    def _copy_bytes(
        self,
        table: ReshardTable,
        rows: IntArray,
        columns: IntArray,
        value: int,
        bits: int,
        *,
        is_brief: bool,
    ) -> IntArray | None:
        """int64[num_rows, num_columns]: bytes of the copy a reshard makes; None: negligible."""
        tensor = self.graph.values[value]
        if tensor.num_bytes * bits < self._negligible_bytes * tensor.bits:
            return None
        key = (id(table), id(rows), id(columns), -3 if is_brief else -1)
        found = self._costs.get(key)
        if found is None:
            pieces = self._pieces(table)[columns]
            local = np.broadcast_to(
                self._temporary(tensor) * bits // (tensor.bits * pieces),
                (len(rows), len(columns)),
            )
            moved = self._moved(table, rows, columns)
            copied = np.where(moved, local, 0).astype(np.int64)
            found = ((table, rows, columns), self._on_chip.left(copied, is_brief=is_brief))
            self._costs[key] = found
        return found[1] if found[1].any() else None

    def _turned(
        self,
        edge: int,
        time: int,
        table: ReshardTable,
        rows: IntArray,
        columns: IntArray,
        value: int,
    ) -> Iterator[EdgeMemory]:
        """What a gather holds twice while it is copied into order, where the backend does so."""
        found = self.graph.values[value]
        if not turns_gathers(self._backend) or found.num_bytes < self._negligible_bytes:
            return
        key = (id(table), id(rows), id(columns), -2)
        known = self._costs.get(key)
        if known is None:
            if id(table) not in self._turns:
                self._turns[id(table)] = turned_shares(table, self.costing.parts, found.shape)
            held = self._turns[id(table)][np.ix_(rows, columns)] * self._temporary(found)
            known = ((table, rows, columns), held.astype(np.int64))
            self._costs[key] = known
        if known[1].any():
            yield EdgeMemory(edge, time, time + 1, known[1])

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

    def order_seconds(self, op: Op, value: int) -> npt.NDArray[np.float64] | None:
        """float64[num_layouts, num_layouts]: copies of what comes out of a move out of order.

        None where the reader takes it in any order of dimensions. Rows and columns are those of the
        value's table.
        """
        found = self.graph.values[value]
        is_turned = op.name == "transpose"
        if op.op_class in PRODUCTS or not keeps_order_of_gathers(self._backend):
            return None
        if len(found.shape) < 2:
            return None
        table = self._table(value)
        known = self._orders.get((id(table), is_turned))
        if known is None:
            num_bytes = 2.0 * found.num_bytes / self._pieces(table)
            copied = (
                self._moves_of(table)
                if is_turned
                else widens_rows(table, self.costing.parts, found.shape, row_lanes(self._backend))
            )
            copies = 1 if is_turned else COPIES_OF_TURNED
            known = np.where(copied, copies * self.costing.copy_seconds(num_bytes), 0.0)
            self._orders[id(table), is_turned] = known
        return known if known.any() else None

    def _moved(
        self, table: ReshardTable, rows: IntArray, columns: IntArray
    ) -> npt.NDArray[np.bool_]:
        return self._moves_of(table)[np.ix_(rows, columns)]

    def _moves_of(self, table: ReshardTable) -> npt.NDArray[np.bool_]:
        if id(table) not in self._moves:
            self._moves[id(table)] = _moves_data(table)
        return self._moves[id(table)]

    def _outgrown_bytes(
        self, table: ReshardTable, rows: IntArray, columns: IntArray, value: int
    ) -> IntArray | None:
        """int64[num_rows, num_columns]: bytes of a value made otherwise than its result is kept.

        Only then does it need a buffer beside that of the donated argument it replaces.
        """
        found = self.graph.values[value]
        if found.num_bytes < self._negligible_bytes:
            return None
        local = self._temporary(found) // self._pieces(table)[rows]
        is_kept = rows[:, None] == columns[None, :]
        usage: IntArray = np.where(is_kept, 0, local[:, None]).astype(np.int64)
        return usage if usage.any() else None

    def _pieces(self, table: ReshardTable) -> IntArray:
        parts = self.costing.parts
        return np.array(
            [parts.num_shards(p for dim in layout for p in dim) for layout in table.layouts],
            dtype=np.int64,
        )

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
        candidates = self._candidates[op.index]
        values = (*op.operands, *op.results)
        key = (
            id(candidates),
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
            tuple(self.buffers.is_stored[v] for v in op.results),
            tuple(self.buffers.owner[v] == v for v in op.results),
        )
        found = self._own_costs.get(key)
        if found is None:
            seconds = self.costing.candidate_seconds(self.graph, self.buffers, op, candidates)
            found = _picoseconds(seconds * op.repeat)
            self._own_costs[key] = found
        return found

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

    def _node_memory(self, node_by_op: Mapping[int, int]) -> list[NodeMemory]:
        terms = [*self._copied_arguments(node_by_op), *self._narrowed_for_loops(node_by_op)]
        cache: dict[tuple[int, int, int], tuple[object, IntArray]] = {}
        for value in self.graph.values:
            start, stop = self.buffers.intervals[value.index]
            op = self.graph.ops[value.op]
            is_summed = op.op_class is OpClass.MATMUL and not self.buffers.is_stored[value.index]
            if value.index in self._reused or value.op not in node_by_op:
                continue
            if stop <= start and not is_summed:
                continue
            node, candidates = node_by_op[op.index], self._candidates[op.index]
            place = op.results.index(value.index)
            held = value.num_bytes if op.kind is OpKind.ARGUMENT else self._temporary(value)
            key = (id(candidates), place, held)
            if key not in cache:
                pieces = [
                    self.costing.parts.num_shards(p for dim in c.results[place] for p in dim)
                    for c in candidates
                ]
                usage = held // np.array(pieces, dtype=np.int64)
                cache[key] = (candidates, usage)
            usage = cache[key][1]
            if value.index in self.buffers.unless_summed:
                usage = np.where([bool(c.reduced or c.scattered) for c in candidates], usage, 0)
            if is_summed:  # what it is written as comes after the sum: until then all is held
                start, usage = op.index, np.zeros_like(usage)
            else:
                is_brief = self._on_chip.brief[value.index]
                left = self._on_chip.left(usage, is_brief=is_brief)
                terms.append(NodeMemory(node, start, stop, left))
            terms += self._layout_copies(node, op, candidates)
            partial = self._partial_bytes(op, candidates, held, usage)
            if partial is not None:
                left = self._on_chip.left(partial, is_brief=True)
                terms.append(NodeMemory(node, start, start + 1, left))
        terms += self._panels(node_by_op)
        terms += self._padded_rows(node_by_op)
        return terms

    def _panels(self, node_by_op: Mapping[int, int]) -> Iterator[NodeMemory]:
        """What products in steps hold while they run."""
        overhead = temporary_overhead(self._backend)
        for index, node in node_by_op.items():
            candidates = self._candidates[index]
            if candidates[-1].streamed is None:
                continue
            op = self.graph.ops[index]
            held = [self.costing.streamed_bytes(self.graph, op, c) for c in candidates]
            usage = (np.array(held, dtype=np.float64) * overhead).astype(np.int64)
            yield NodeMemory(node, index, index + 1, usage)

    def _padded_rows(self, node_by_op: Mapping[int, int]) -> Iterator[NodeMemory]:
        """Copies into padded rows that look-ups make."""
        overhead = temporary_overhead(self._backend)
        lanes = row_lanes(self._backend)
        for index, node in node_by_op.items():
            op, candidates = self.graph.ops[index], self._candidates[index]
            held = padded_row_bytes(self.graph, self.costing.parts, op, candidates, lanes)
            if held is not None:
                left = self._on_chip.left((held * overhead).astype(np.int64), is_brief=True)
                yield NodeMemory(node, index, index + 1, left)

    def _copied_arguments(self, node_by_op: Mapping[int, int]) -> Iterator[NodeMemory]:
        """Results that are arguments unchanged: the program writes a copy."""
        arguments = {op.results[0] for op in self.graph.arguments}
        kept = {result for _, result in self.wishes.alike}
        for position, op in enumerate(self.graph.results):
            value = self.graph.values[op.operands[0]]
            is_argument = self.buffers.owner[value.index] in arguments
            if not is_argument or position in kept or op.index not in node_by_op:
                continue
            pieces = [
                self.costing.parts.num_shards(p for dim in c.operands[0] for p in dim)
                for c in self._candidates[op.index]
            ]
            usage = value.num_bytes // np.array(pieces, dtype=np.int64)
            yield NodeMemory(node_by_op[op.index], op.index, len(self.graph.ops), usage)

    def _narrowed_for_loops(self, node_by_op: Mapping[int, int]) -> Iterator[NodeMemory]:
        """Narrower copies of what loops read unchanged, from the first such loop to the last."""
        for copy in copies_for_loops(self.graph, self._backend):
            found = self.graph.values[copy.value]
            if found.op not in node_by_op or found.num_bytes < self._negligible_bytes:
                continue
            maker = self.graph.ops[found.op]
            place = maker.results.index(copy.value)
            pieces = [
                self.costing.parts.num_shards(p for dim in c.results[place] for p in dim)
                for c in self._candidates[found.op]
            ]
            usage = self._temporary(found) * copy.bits // found.bits // np.array(pieces)
            yield NodeMemory(node_by_op[found.op], copy.start, copy.stop, usage)

    def _temporary(self, value: Value) -> int:
        """Bytes that a whole value takes as a temporary of this backend."""
        return int(value.num_bytes * temporary_overhead(self._backend))

    def _layout_copies(
        self, node: int, op: Op, candidates: tuple[Candidate, ...]
    ) -> Iterator[NodeMemory]:
        """Copies that XLA's CPU backend makes for the gradients of a convolution.

        The kernel's gradient contracts over the batch and wants both operands in another dimension
        order; the input's gradient wants the kernel reversed. Each copy is made as soon as what it
        is made from is there (seen in buffer assignments of jaxlib 0.10.2).
        """
        if op.op_class is not OpClass.CONVOLUTION or not copies_convolution_gradients(
            self._backend
        ):
            return
        assert op.rule is not None
        contracts_batch = set(op.rule.operands[0][0]) <= op.rule.reduction
        for position, value in enumerate(op.operands):
            found = self.graph.values[value]
            maker = self.graph.ops[found.op]
            if contracts_batch:
                start, stop = found.op, op.index + 1
            elif maker.name == "reverse":
                start, stop = self.graph.values[maker.operands[0]].op, maker.index
            else:
                continue
            pieces = [
                self.costing.parts.num_shards(p for dim in c.operands[position] for p in dim)
                for c in candidates
            ]
            usage = self._temporary(found) // np.array(pieces, dtype=np.int64)
            yield NodeMemory(node, start, stop, usage)

    def _find_negligible_bytes(self) -> float:
        arguments = sum(self.graph.values[op.results[0]].num_bytes for op in self.graph.arguments)
        held = arguments / self.costing.parts.mesh.num_devices
        if self.memory_limit is None:
            return held * NEGLIGIBLE_SHARE
        return min(self.memory_limit * NEGLIGIBLE_SHARE, held * NEGLIGIBLE_SHARE_HELD)

    def _partial_bytes(
        self, op: Op, candidates: tuple[Candidate, ...], total: int, usage: IntArray
    ) -> IntArray | None:
        """Bytes a result takes beyond its final size before it is scattered."""
        if len(op.results) != 1 or not any(c.stands_partial for c in candidates):
            return None
        if total < self._negligible_bytes:
            return None
        before = [
            total // self.costing.parts.num_shards(p for dim in c.partial for p in dim)
            if c.stands_partial
            else 0
            for c in candidates
        ]
        extra: IntArray = np.maximum(np.array(before, dtype=np.int64) - usage, 0)
        return extra

    def _reused_results(self) -> set[int]:
        """Values that end in the buffer of a donated argument."""
        donated = set(self.graph.donated)
        results = self.graph.results
        return {
            self.buffers.owner[results[result].operands[0]]
            for argument, result in self.wishes.alike
            if argument in donated
        } - {op.results[0] for op in self.graph.arguments}


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


def _moves_data(table: ReshardTable) -> npt.NDArray[np.bool_]:
    """bool[num_layouts, num_layouts]: whether a reshard is more than cutting further."""
    size = len(table.layouts)
    moved = np.ones((size, size), dtype=np.bool_)
    for end, layout in enumerate(table.layouts):
        prefixes = [[dim[:length] for length in range(len(dim) + 1)] for dim in layout]
        for coarser in product(*prefixes):
            start = table.index.get(coarser)
            if start is not None:
                moved[start, end] = False
    return moved


@dataclass(frozen=True, slots=True, eq=False)
class Decoded:
    """The chosen candidate of every op, and the layout of every value."""

    candidates: Mapping[int, Candidate]  # by op index
    layouts: tuple[Layout, ...]  # by value index
    shared: Mapping[tuple[int, int], Layout] = field(default_factory=dict)
    """By op index and operand position, the layout that readers of one value share a copy in."""


def decode(encoded: Encoded, choices: Sequence[int]) -> Decoded:
    """Read a solver's choices back.

    Values that every device can make itself follow their readers, as far as those agree: what one
    reader wants cut further it cuts for itself.
    """
    graph = encoded.graph
    chosen = encoded.joined.as_run(
        encoded.sums.as_run(
            {
                op: encoded.candidates[node][choice]
                for node, (op, choice) in enumerate(zip(encoded.ops, choices, strict=False))
            }
        )
    )
    layouts: list[Layout | None] = [None] * len(graph.values)
    for op in graph.ops:
        if op.index in chosen:
            for value, layout in zip(op.results, chosen[op.index].results, strict=True):
                layouts[value] = layout
    for op in reversed(graph.ops):
        wanted = chosen[op.index].operands if op.index in chosen else None
        if op.kind is OpKind.FREE and op.results:  # made piece by piece, from pieces
            made = layouts[op.results[0]]
            shape = graph.values[op.results[0]].shape
            same = all(graph.values[value].shape == shape for value in op.operands)
            wanted = (made,) * len(op.operands) if made is not None and same else None
        for position, value in enumerate(op.operands):
            if wanted is not None and graph.values[value].op not in chosen:
                layouts[value] = _common(layouts[value], wanted[position])
    final = tuple(
        layout if layout is not None else ((),) * len(value.shape)
        for layout, value in zip(layouts, graph.values, strict=True)
    )
    copies = zip(encoded.reads, choices[len(encoded.ops) :], strict=True)
    shared = {key: read.layouts[choice] for read, choice in copies for key in read.reads}
    return Decoded(chosen, final, shared)


def _common(layout: Layout | None, wanted: Layout) -> Layout:
    """What two layouts cut alike, from the major end of every dimension on."""
    if layout is None:
        return wanted
    return tuple(
        tuple(a for a, b in takewhile(lambda pair: pair[0] == pair[1], zip(*dims, strict=False)))
        for dims in zip(layout, wanted, strict=True)
    )
