"""The only door to `solvers`: the planning problem as integers.

One node per op, one choice per candidate. A node costs the op's own time; an edge costs the
reshard of one operand. A value that several ops read has a node too: the sharding it is read in.
Memory terms hold bytes per device over op indices. Costs are picoseconds.
`encoded.decode` reads the answer back: `decode(encoded, result.choices)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from autoshard.candidates.candidate import MAX_CANDIDATES, Candidate
from autoshard.candidates.op_candidates import OpCandidates
from autoshard.candidates.partitioner_limits import misreads_slices
from autoshard.candidates.rounds import ONLY_ROUND, Round
from autoshard.candidates.streamed import stream_offers
from autoshard.costing.cost_term import OpTermKind
from autoshard.costing.costing import Costing
from autoshard.costing.op_terms import OP_TERMS
from autoshard.costing.program_facts import ProgramFacts
from autoshard.costing.tiles import tiled_in
from autoshard.encoding.all_reduce_motion import AllReduceMotion
from autoshard.encoding.choice_memory import ChoiceMemory, reversed_kernels
from autoshard.encoding.copy_memory import CopyMemory
from autoshard.encoding.corrections import NO_CORRECTIONS, Corrections, corrected
from autoshard.encoding.device_room import DeviceRoom
from autoshard.encoding.encoded import Encoded
from autoshard.encoding.hidden_communication import (
    NOTHING_HIDDEN,
    Hidden,
    hidden_behind_computing,
)
from autoshard.encoding.misread_slices import MisreadSlices
from autoshard.encoding.node_costs import NodeCosts
from autoshard.encoding.picoseconds import PICOSECONDS
from autoshard.encoding.read_costs import ReadCosts
from autoshard.encoding.read_edges import ReadEdges
from autoshard.encoding.shared_reads import SharedRead, shared_reads, updating_reads
from autoshard.encoding.single_rows import SingleRows
from autoshard.encoding.tables import Tables
from autoshard.encoding.tie_edges import TieEdges
from autoshard.encoding.with_steps import WithSteps
from autoshard.graph.buffers import Buffers
from autoshard.graph.program import Graph, Op, OpKind
from autoshard.reshard import Resharder
from autoshard.wishes.wishes import Wishes
from solvers import NodeMemory, Problem, least_use

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class _Offered:
    """The nodes of a problem, whose candidates have been enumerated, and what these hold."""

    nodes: Sequence[Op]
    node_by_op: Mapping[int, int]
    all_reduces: AllReduceMotion
    memory: tuple[NodeMemory, ...]


@dataclass(slots=True)
class Encoder:
    """Builds the choice problem of one program on one mesh.

    Args:
        memory_limit: Bytes one device may hold, or None for no limit.
        max_candidates: Most ways to cut that one op is offered.
        round: What holds in this round of planning.
        streamable: Paths of the `dot_general` equations that may run in steps.
        is_scarce: Whether memory is: then equal moves of a value are counted as the one copy that
            they become.
        corrections: What was learnt from compiled plans of the program.
        op_terms: What the cost of an op is the sum of.
        has_residuals_to_choose: What the program holds at one time is no bound of what it has to.

    Attributes:
        facts: What costs depend on beside the op or read that is priced.
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
    corrections: Corrections = NO_CORRECTIONS
    op_terms: tuple[OpTermKind, ...] = OP_TERMS
    has_residuals_to_choose: bool = False
    _candidates: dict[int, tuple[Candidate, ...]] = field(init=False)
    tables: Tables = field(init=False)
    facts: ProgramFacts = field(init=False)
    room: DeviceRoom = field(init=False)
    node_costs: NodeCosts = field(init=False)
    read_costs: ReadCosts = field(init=False)
    _copies: CopyMemory = field(init=False)
    _offers: OpCandidates = field(init=False)
    _known_offered: _Offered | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        graph, parts = self.graph, self.costing.parts
        self.facts = ProgramFacts(graph, self.buffers, self.costing, self.wishes.alike)
        self._offers = OpCandidates(
            graph,
            parts,
            self.wishes,
            self.costing.backend.collectives,
            self.max_candidates,
            self.round,
        )
        self._begin(Resharder(parts, self.costing))

    def _begin(self, resharder: Resharder) -> None:
        """Starts without candidates; reshards that were found are shared."""
        self._candidates, self._known_offered = {}, None
        self.tables = Tables(self.graph, self.facts.read_bits, resharder)
        self.room = DeviceRoom.of(self.facts, self.memory_limit, is_scarce=self.is_scarce)
        self.node_costs = NodeCosts(self.facts, self._candidates, self.op_terms)
        self.read_costs = ReadCosts(self.facts, self.tables, self._candidates)
        self._copies = CopyMemory(self.room)

    def for_scarce_memory(self) -> Encoder:
        """The same where memory is scarce; candidates and reshards that were found are shared."""
        other = copy(self)
        other.is_scarce = True
        other._begin(self.tables.resharder)
        return other

    def least_bytes(self) -> int:
        """A bound on what any choices hold at one time, copies of operands left out."""
        offered = self._offered()
        problem = Problem(
            node_costs=tuple(
                np.zeros(len(self._candidates[op.index]), np.int64) for op in offered.nodes
            ),
            edges=(),
            node_memory=offered.memory,
        )
        return least_use(problem)[0]

    def within(self, memory_limit: int | None, corrections: Corrections) -> Encoder:
        """The same for another limit and other corrections; what it has enumerated is shared."""
        other = copy(self)
        other.memory_limit, other.corrections = memory_limit, corrections
        return other

    def encode(self) -> Encoded:
        """Enumerate, price and assemble."""
        graph, candidates, offers = self.graph, self._candidates, self._offers
        offered = self._offered()
        nodes, node_by_op, all_reduces = offered.nodes, offered.node_by_op, offered.all_reduces
        self.tables.make(nodes, candidates, offers.of_shape)
        reads = self._shared_reads()
        own_costs = {op.index: self.node_costs.of(op) for op in nodes}
        hidden = self._hidden(own_costs)
        of_reads = ReadEdges(self.read_costs, self._copies, node_by_op, reads, hidden)
        edges, copies = of_reads.make(nodes)
        edges += TieEdges(graph, self.wishes, candidates, node_by_op, offers.pins).make()
        edges += MisreadSlices(self.tables, candidates, node_by_op).make(nodes)
        edges += all_reduces.edges(self.node_costs, node_by_op)
        exposed = (self.node_costs.exposed(op, own_costs[op.index], hidden) for op in nodes)
        widths = {len(read.layouts) for read in reads}
        free = {width: np.zeros(width, dtype=np.int64) for width in widths}
        problem = Problem(
            node_costs=(*exposed, *(free[len(read.layouts)] for read in reads)),
            edges=tuple(edges),
            node_memory=offered.memory,
            edge_memory=tuple(copies),
            memory_limit=self._limit_beside_tables(),
        )
        encoded = Encoded(
            problem,
            graph,
            self.costing.parts,
            tuple(op.index for op in nodes),
            tuple(candidates[op.index] for op in nodes),
            self.tables.by_type,
            node_by_op,
            self.facts.read_bits,
            reads,
            all_reduces,
            hidden,
            of_reads.by_read,
            of_reads.by_shared_read,
        )
        return corrected(encoded, self.corrections, self.node_costs)

    def _offered(self) -> _Offered:
        """Find the candidates of all nodes, once."""
        if self._known_offered is None:
            nodes = [op for op in self.graph.ops if self._offers.has_choice(op)]
            backend = self.costing.backend
            all_reduces = AllReduceMotion.of(self.graph, backend.collectives)
            with_steps = self._with_steps()
            rows = SingleRows(self.graph, self.costing.parts, backend.fusion, self.is_scarce)
            for op in nodes:
                offered = with_steps.of(op, rows.offered(op, self._offers.of(op)))
                self._candidates[op.index] = all_reduces.offered(op, offered)
            node_by_op = {op.index: node for node, op in enumerate(nodes)}
            memory = tuple(self._memory(node_by_op).terms())
            self._known_offered = _Offered(nodes, node_by_op, all_reduces, memory)
        return self._known_offered

    def _shared_reads(self) -> tuple[SharedRead, ...]:
        """What several ops read in one sharding."""
        found = shared_reads(
            self.graph,
            self.buffers,
            self._candidates,
            self.facts.read_bits,
            updating_reads(self.graph, self.wishes.alike) | self._scattered_into(),
            reversed_kernels(self.graph, self.costing.backend),
        )
        if self.is_scarce and self.costing.backend.memory.cse_reshards:
            return tuple(map(self._apart_for_one, found))
        return tuple(found)

    def _scattered_into(self) -> frozenset[tuple[int, int]]:
        """Operands that scatters change, which are no copies moved for other readers too."""
        ops = (self.graph.ops[index] for index in self._candidates)
        return frozenset((op.index, op.operands[0]) for op in ops if misreads_slices(op))

    def _apart_for_one(self, read: SharedRead) -> SharedRead:
        """The same, with a choice of the reader that holds a copy for itself where it matters."""
        is_small = self.graph.values[read.value].num_bytes < self.room.negligible_bytes
        return read if is_small or not read.common else read.for_each_reader()

    def _limit_beside_tables(self) -> int | None:
        """Bytes that tensors may take: the limit without the tuple index tables of every plan."""
        memory, layout = self.costing.backend.memory, self.costing.backend.layout
        if self.memory_limit is None or not memory.allocates_in_schedule_order:
            return self.memory_limit
        fewest = []
        for op in self.graph.arguments:
            value = self.graph.values[op.results[0]]
            layouts = {candidate.results[0] for candidate in self._candidates.get(op.index, ())}
            layouts = layouts or {((),) * len(value.shape)}
            held = [tiled_in(self.costing.parts, layout, value, one) for one in layouts]
            fewest.append(min(held, key=memory.num_tuple_index_tables))
        return max(self.memory_limit - memory.tuple_index_bytes(fewest, self.graph.num_matmuls), 0)

    def _with_steps(self) -> WithSteps:
        is_only_round = self.round is ONLY_ROUND
        equations = self.streamable if is_only_round else frozenset()
        is_open = self.has_residuals_to_choose
        held = 0 if is_open else self.buffers.most_held_bytes(self.graph)
        parts, limit = self.costing.parts, self.memory_limit
        offers = stream_offers(self.graph, parts, equations, limit, held)
        return WithSteps(offers, self.node_costs, self.max_candidates)

    def _memory(self, node_by_op: Mapping[int, int]) -> ChoiceMemory:
        """What the choices of ops hold."""
        return ChoiceMemory(
            self.room,
            self.wishes.alike,
            self._candidates,
            node_by_op,
            self.facts.written_bits,
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
        reductions = self.node_costs.reductions
        return hidden_behind_computing(reductions, self._candidates, least, self.facts.read_bits)
