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

from autoshard.backend_habits import counts_equal_moves_once, lays_out_as_made
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
from autoshard.encoding.encoded import Encoded
from autoshard.encoding.joined_sums import JoinedSums
from autoshard.encoding.node_costs import NodeCosts
from autoshard.encoding.picoseconds import PICOSECONDS, picoseconds
from autoshard.encoding.pointer_tables import least_table_bytes
from autoshard.encoding.read_costs import ReadCosts
from autoshard.encoding.shared_reads import SharedRead, reads_of, shared_reads, updating_reads
from autoshard.encoding.sums_after_loops import SumsAfterLoops
from autoshard.encoding.table_facts import TableFacts
from autoshard.encoding.tables import Tables
from autoshard.encoding.tiles import tiled_in
from autoshard.encoding.with_steps import WithSteps
from autoshard.graph.buffers import Buffers
from autoshard.graph.program import Graph, Op, OpClass, OpKind
from autoshard.overlap.hidden import (
    NOTHING_HIDDEN,
    Hidden,
    hidden_behind_computing,
)
from autoshard.reshard import Resharder
from autoshard.sharding import format_sharding
from autoshard.wishes.pinned import Pin
from autoshard.wishes.ties import Tie, TiedTensor, constrained_arguments, refuse_clashes, unequal
from autoshard.wishes.wishes import Wishes as Wishes
from solvers import FORBIDDEN, Edge, EdgeMemory, Problem

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """Where a read takes its value from.

    Args:
        node: The node.
        layouts: int64[num_choices]: the place of each choice's layout in the table of the value.
        read: Where it is the read that several ops share.
    """

    node: int
    layouts: IntArray
    read: SharedRead | None = None


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
        node_costs: What candidates cost by themselves.
        read_costs: What reads cost.
        tables: Reshards of its tensors.
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
    _candidates: dict[int, tuple[Candidate, ...]] = field(default_factory=dict)
    _read_bits: ReadBits = field(init=False)
    tables: Tables = field(init=False)
    _own_costs: dict[Hashable, IntArray] = field(default_factory=dict)
    room: DeviceRoom = field(init=False)
    node_costs: NodeCosts = field(init=False)
    read_costs: ReadCosts = field(init=False)
    _copies: CopyMemory = field(init=False)

    def __post_init__(self) -> None:
        graph, buffers, costing = self.graph, self.buffers, self.costing
        self._read_bits = ReadBits.of(graph, self._backend)
        self.tables = Tables(graph, self._read_bits, Resharder(costing.parts, costing))
        self.room = DeviceRoom.of(
            graph,
            buffers,
            costing,
            self.wishes,
            self.memory_limit,
            is_scarce=self.is_scarce,
        )
        facts = TableFacts(costing.parts)
        self.node_costs = NodeCosts(graph, buffers, costing, self._candidates)
        self.read_costs = ReadCosts(costing, buffers, self.tables, facts, self._candidates)
        self._copies = CopyMemory(self.room, facts)

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
        self.tables.make(nodes, self._candidates, offers.of_shape)
        node_by_op = {op.index: node for node, op in enumerate(nodes)}
        own_costs = {op.index: self.node_costs.of(op) for op in nodes}
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
        exposed = (self.node_costs.exposed(op, own_costs[op.index], hidden) for op in nodes)
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
            memory_limit=self._limit_beside_tables(),
        )
        return Encoded(
            problem,
            self.graph,
            self.costing.parts,
            tuple(op.index for op in nodes),
            tuple(self._candidates[op.index] for op in nodes),
            self.tables.by_type,
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
            more = picoseconds((inside - after) * op.repeat)
            stays = ~sums.leaves(one, made, added)
            yield Edge(node_by_op[one.op], node_by_op[one.add], np.where(stays, more[:, None], 0))

    def _sums_apart(self, joined: JoinedSums, node_by_op: Mapping[int, int]) -> Iterator[Edge]:
        """What sums cost that are not taken with those of the result they are added to."""
        for one in joined:
            if one.first.op not in node_by_op or one.second.op not in node_by_op:
                continue
            op = self.graph.ops[one.second.op]
            firsts, seconds = self._candidates[one.first.op], self._candidates[op.index]
            key = (
                "apart",
                id(firsts),
                one.first.order,
                one.second.order,
                *self.node_costs.like(op),
            )
            if key not in self._own_costs:
                own = self.costing.reduction_seconds(self.graph, op, joined.apart(seconds))
                self._own_costs[key] = picoseconds(own * op.repeat)
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

    def _limit_beside_tables(self) -> int | None:
        """Bytes that tensors may take: the limit without the tables that no plan is without."""
        if self.memory_limit is None or not lays_out_as_made(self._backend):
            return self.memory_limit
        parts, held = self.costing.parts, []
        for op in self.graph.arguments:
            value = self.graph.values[op.results[0]]
            candidates = self._candidates.get(op.index, ())
            layouts = {candidate.results[0] for candidate in candidates} or {
                ((),) * len(value.shape)
            }
            held.append([tiled_in(parts, value, layout) for layout in layouts])
        return max(self.memory_limit - least_table_bytes(self.graph, self.costing, held), 0)

    def _with_steps(self) -> WithSteps:
        is_only_round = self.round is ONLY_ROUND
        equations = self.streamable if is_only_round else frozenset()
        held = self.buffers.most_held_bytes(self.graph)
        parts, limit = self.costing.parts, self.memory_limit
        offers = stream_offers(self.graph, parts, equations, limit, held)
        return WithSteps(offers, self.costing, self.buffers, self.max_candidates)

    # -- reshards -------------------------------------------------------------------------------

    def _edges(
        self,
        nodes: list[Op],
        node_by_op: Mapping[int, int],
        reads: Sequence[SharedRead],
        cut: CutSums,
        hidden: Hidden,
    ) -> tuple[list[Edge], list[EdgeMemory]]:
        """To what several ops read from what makes it, then to every op from what it reads."""
        edges: list[Edge] = []
        copies: list[EdgeMemory] = []
        sources: dict[tuple[int, int], Source] = {}
        for node, read in enumerate(reads, start=len(nodes)):
            source = self._making(read.value, node_by_op)
            edge, held = self._to_read(len(edges), node, read, source, cut, hidden)
            edges.append(edge)
            copies += held
            given = Source(node, self.tables.of_read(read), read)
            sources.update(dict.fromkeys(read.reads, given))
        for op in nodes:
            for position, value in enumerate(op.operands):
                maker = self.graph.values[value].op
                if maker not in node_by_op or maker == op.index:
                    continue
                if not self.graph.values[value].shape:
                    continue
                source = sources.get((op.index, position)) or self._making(value, node_by_op)
                costs = self._operand_costs(op, position, source, cut, hidden)
                if costs is None:
                    continue
                copies += self._operand_copies(len(edges), op, position, source)
                edges.append(Edge(source.node, node_by_op[op.index], costs))
        return edges, copies

    def _to_read(
        self,
        edge: int,
        node: int,
        read: SharedRead,
        source: Source,
        cut: CutSums,
        hidden: Hidden,
    ) -> tuple[Edge, list[EdgeMemory]]:
        """The move for several readers, and the copies that it makes."""
        rows, columns = source.layouts, self.tables.of_read(read)
        table = self.tables.of(read.value, read.bits)
        slack = hidden.reads.get(read.reads[0], 0.0)
        prices, (first, place) = self.read_costs, read.reads[0]
        reader = self.graph.ops[first]
        costs = prices.of_move(table, rows, columns, read.repeat, slack)
        costs = prices.with_narrowing(costs, reader, place, rows, columns)
        costs = prices.with_order(costs, reader, place, rows, columns)
        costs = prices.with_sums(costs, read.reads, rows, columns)
        costs = prices.with_whole_sums(costs, cut, read.value, read.reads[0], rows, columns)
        times = {index for index, _ in read.reads} | {read.stop - 1}
        is_brief = self.room.on_chip.is_brief(self.graph.ops[read.start], times)
        usage = self._copies.of_move(table, rows, columns, read.value, read.bits, is_brief=is_brief)
        copies = [] if usage is None else [EdgeMemory(edge, read.start, read.stop, usage)]
        copies += self._copies.of_turned(edge, read.start, table, rows, columns, read.value)
        return Edge(source.node, node, costs), copies

    def _operand_costs(
        self, op: Op, position: int, source: Source, cut: CutSums, hidden: Hidden
    ) -> IntArray | None:
        """What an op's read of an operand costs; None where another read of it does it all."""
        value, read_at = op.operands[position], (op.index, position)
        rows, columns = source.layouts, self._taking(op, position)
        table = self.tables.of(value, self._read_bits.to(op, position))
        is_given = source.read is not None and source.read.reads[0] == read_at
        slack = 0.0 if is_given else hidden.reads.get(read_at, 0.0)  # of the move for all readers
        prices = self.read_costs
        costs = prices.of_move(table, rows, columns, reads_of(op, position), slack)
        costs = prices.with_narrowing(costs, op, position, rows, columns)
        earlier = _earlier_reads(op, position)
        if earlier:  # what one read of the op needs moved is there for its other reads
            shared = self._shared_reads(op, value, columns, earlier)
            if shared.all():
                return None
            costs = np.where(shared, 0, costs)
        costs = prices.with_order(costs, op, position, rows, columns)
        costs = prices.with_sums(costs, (read_at,), rows, columns)
        if _is_unstacked(op, self.graph.ops[self.graph.values[value].op]):
            costs = prices.where_made(costs, table, rows, columns)
        if source.read is None:
            costs = prices.with_whole_sums(costs, cut, value, read_at, rows, columns)
        return costs

    def _operand_copies(
        self, edge: int, op: Op, position: int, source: Source
    ) -> Iterator[EdgeMemory]:
        """Copies that an op's read of an operand makes."""
        value, bits = op.operands[position], self._read_bits.to(op, position)
        rows, columns = source.layouts, self._taking(op, position)
        table = self.tables.of(value, bits)
        copy = self._copies.of_operand(op, table, rows, columns, value, bits)
        if copy is not None:
            copy = replace(copy, edge=edge)
            yield from self._copies.of_reader(copy, op, source.read, table, columns)
        yield from self._copies.of_turned(edge, op.index, table, rows, columns, value)
        producer = self.graph.ops[self.graph.values[value].op]
        if producer.op_class is OpClass.SCATTER and source.read is None:
            made, added = self._candidates[producer.index], self._candidates[op.index]
            yield from self._copies.of_scatter(edge, producer, made, op, added)

    def _making(self, value: int, node_by_op: Mapping[int, int]) -> Source:
        """What makes a value."""
        maker = self.graph.ops[self.graph.values[value].op]
        place = maker.results.index(value)
        layouts = self.tables.indices(self._candidates[maker.index], True, place, value)
        return Source(node_by_op[maker.index], layouts)

    def _taking(self, op: Op, position: int) -> IntArray:
        """int64[num_candidates]: where an op takes an operand."""
        candidates, value = self._candidates[op.index], op.operands[position]
        return self.tables.indices(candidates, False, position, value)

    def _shared_reads(
        self, op: Op, value: int, columns: IntArray, earlier: list[int]
    ) -> npt.NDArray[np.bool_]:
        """bool[num_candidates]: whether an earlier read of the same value has the same need."""
        candidates = self._candidates[op.index]
        reads = [self.tables.indices(candidates, False, place, value) for place in earlier]
        shared: npt.NDArray[np.bool_] = np.any([read == columns for read in reads], axis=0)
        return shared

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
