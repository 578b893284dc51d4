"""The only door to `solvers`: the planning problem as integers, and the answer back as layouts.

One node per op, one choice per candidate. A node costs the op's own time; an edge costs the
reshard of one operand. Memory terms hold bytes per device over op indices. Costs are picoseconds.
Encode and decode are a pair: `decode(encoded, result.choices)`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, product, takewhile

import numpy as np
import numpy.typing as npt

from autoshard.backend_habits import (
    copies_convolution_gradients,
    keeps_whole,
    temporary_overhead,
)
from autoshard.candidates import MAX_CANDIDATES, Candidate, CandidateMaker
from autoshard.costing import Costing
from autoshard.errors import ConstraintError
from autoshard.graph.buffers import Buffers, carry_stop
from autoshard.graph.program import Graph, Op, OpClass, OpKind, Value
from autoshard.graph.rule import identity_rule
from autoshard.layouts import Layout, MeshParts
from autoshard.pinned import Pin, constraint_sharding, read_pin
from autoshard.reshard import Resharder, ReshardTable
from autoshard.sharding import AxisRef, Sharding, format_sharding, parse_sharding
from autoshard.ties import Tie, TiedTensor, refuse_clashes, unequal
from solvers import FORBIDDEN, Edge, EdgeMemory, NodeMemory, Problem

IntArray = npt.NDArray[np.int64]

PICOSECONDS = 1e12
NEGLIGIBLE_SHARE = 1e-4  # buffers below this share of the budget are not worth a memory term


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What the user asked for, in the graph's terms.

    Args:
        arguments: Per argument, the sharding asked for, or None.
        results: Per result, likewise.
        alike: Pairs of (argument position, result position) that must end the same.
        values: Shardings for values anywhere, by value index.
    """

    arguments: Sequence[Sharding | None]
    results: Sequence[Sharding | None]
    alike: Sequence[tuple[int, int]] = ()
    values: Mapping[int, Sharding] = field(default_factory=dict)

    def refs(self) -> Iterator[AxisRef]:
        """Every axis reference the user wrote."""
        for sharding in (*self.arguments, *self.results, *self.values.values()):
            if sharding is not None:
                for dim in sharding.dims:
                    yield from dim.axes
                yield from sharding.replicated


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """A planning problem ready to solve, and what is needed to read its answer."""

    problem: Problem
    graph: Graph
    parts: MeshParts
    ops: tuple[int, ...]  # per node, its op
    candidates: tuple[tuple[Candidate, ...], ...]  # per node
    tables: Mapping[tuple[tuple[int, ...], int], ReshardTable]
    node_by_op: Mapping[int, int]


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
    """

    graph: Graph
    buffers: Buffers
    costing: Costing
    wishes: Wishes
    memory_limit: int | None
    max_candidates: int = MAX_CANDIDATES
    _maker: CandidateMaker = field(init=False)
    _resharder: Resharder = field(init=False)
    _candidates: dict[int, tuple[Candidate, ...]] = field(default_factory=dict)
    _tables: dict[tuple[tuple[int, ...], int], ReshardTable] = field(default_factory=dict)
    _indices: dict[tuple[int, bool, int, int], tuple[object, IntArray]] = field(
        default_factory=dict
    )
    _costs: dict[tuple[int, ...], tuple[object, IntArray]] = field(default_factory=dict)
    _own_costs: dict[Hashable, IntArray] = field(default_factory=dict)
    _pins: dict[int, dict[int, Pin]] = field(default_factory=dict)  # by op, then by value
    _admitted_by_pin: dict[Hashable, tuple[Candidate, ...]] = field(default_factory=dict)
    _moves: dict[int, npt.NDArray[np.bool_]] = field(default_factory=dict)  # by id of the table
    _grouped: frozenset[int] = field(init=False)
    _reused: set[int] = field(init=False)
    _negligible_bytes: float = field(init=False)

    def __post_init__(self) -> None:
        self._maker = CandidateMaker(self.costing.parts)
        self._resharder = Resharder(self.costing.parts, self.costing)
        self._grouped = frozenset(value for group in self.graph.groups for value in group)
        self._reused = self._reused_results()
        self._negligible_bytes = self._find_negligible_bytes()

    @property
    def _backend(self) -> str:
        return self.costing.model.hardware.backend

    def encode(self) -> Encoded:
        """Enumerate, price and assemble."""
        nodes = [op for op in self.graph.ops if self._has_choice(op)]
        self._read_pins(nodes)
        for op in nodes:
            self._candidates[op.index] = self._candidates_of(op)
        self._make_tables(nodes)
        node_by_op = {op.index: node for node, op in enumerate(nodes)}
        edges, copies = self._edges(nodes, node_by_op)
        edges += self._ties(node_by_op)
        problem = Problem(
            node_costs=tuple(self._node_costs(op) for op in nodes),
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
        )

    # -- candidates -----------------------------------------------------------------------------

    def _has_choice(self, op: Op) -> bool:
        if op.kind is OpKind.FREE:
            return False
        return any(self.graph.values[v].shape for v in (*op.operands, *op.results))

    def _candidates_of(self, op: Op) -> tuple[Candidate, ...]:
        assert op.rule is not None
        forbidden = self.graph.manual_axes(op.region)
        base = self._maker.of_rule(op.rule, forbidden)
        if keeps_whole(self._backend, op.name):
            base = base[:1]
        if op.kind in (OpKind.ENTER_MANUAL, OpKind.LEAVE_MANUAL):
            return self._manual(op, base)
        if op.index in self._pins:
            base = self._admitted(op, base, self._pins[op.index])
        if len(op.results) > 1 and self._grouped.intersection(op.results):
            base = self._alike_results(op, base)
        return base

    def _read_pins(self, nodes: list[Op]) -> None:
        """Read what the user pinned, so that every op can follow it."""
        places = {op.index: i for i, op in enumerate(self.graph.arguments)}
        places |= {op.index: i for i, op in enumerate(self.graph.results)}
        for op in nodes:
            for value, sharding, where in self._asked(op, places.get(op.index, -1)):
                found = self.graph.values[value]
                pin = read_pin(
                    sharding, self.costing.parts, found.shape, f"{where}: {found.type_text}"
                )
                self._pins.setdefault(op.index, {})[value] = pin
        written = frozenset(pin.asked for pins in self._pins.values() for pin in pins.values())
        self._maker = CandidateMaker(
            self.costing.parts, max_candidates=self.max_candidates, written=written
        )

    def _asked(self, op: Op, place: int) -> Iterator[tuple[int, Sharding, str]]:
        """What the user asked of an op: `(value, sharding, where)`."""
        if op.kind is OpKind.CONSTRAINT:
            sharding, where = constraint_sharding(op, self.costing.parts.mesh)
            yield op.results[0], sharding, where
            return
        asked: Sharding | None = None
        if op.kind is OpKind.ARGUMENT:
            value = op.results[0]
            asked, where = self.wishes.arguments[place], f"argument {self.graph.values[value].name}"
        elif op.kind is OpKind.RESULT:
            value = op.operands[0]
            asked, where = self.wishes.results[place], f"result {op.name}"
        if asked is not None:
            yield value, asked, where
        for value in op.results:
            if value in self.wishes.values:
                yield value, self.wishes.values[value], f"value made at {op.source or op.name}"

    def _admitted(
        self, op: Op, base: tuple[Candidate, ...], pins: Mapping[int, Pin]
    ) -> tuple[Candidate, ...]:
        """The candidates that pins admit; a pin that no candidate meets becomes one."""
        wanted = [(_place_of(op, value), pin) for value, pin in pins.items()]
        key = (id(base), *((place, p.asked, p.is_open, p.banned) for place, p in wanted))
        found = self._admitted_by_pin.get(key)
        if found is None:
            found = tuple(
                c
                for c in base
                if all(pin.admits(_side(c, bool(op.results))[place]) for place, pin in wanted)
            )
            if not found and op.kind is not OpKind.COMPUTE:
                found = self._extended(op, base, next(iter(pins.values())))
            if not found:
                shown = " and ".join(format_sharding(pin.sharding) for pin in pins.values())
                raise ConstraintError(
                    f"no way to cut {op.name} ends in {shown}",
                    where="; ".join(pin.where for pin in pins.values()),
                    fix="put a sharding constraint after it, which may reshard",
                )
            self._admitted_by_pin[key] = found
        return found

    def _extended(self, op: Op, base: tuple[Candidate, ...], pin: Pin) -> tuple[Candidate, ...]:
        """Candidates of an op that keeps shapes, made of what is asked for and nothing natural."""
        shape = self.graph.values[(op.results or op.operands)[0]].shape
        layouts = dict.fromkeys(
            pin.extended(self.costing.parts, _side(c, bool(op.results))[0], shape) for c in base
        )
        return tuple(
            Candidate((layout,) * len(op.operands), (layout,) * len(op.results), 1)
            for layout in layouts
            if layout is not None
        )

    def _alike_results(self, op: Op, base: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
        """The candidates under which results of one op in one group are sharded alike."""
        for group in self.graph.groups:
            places = [place for place, value in enumerate(op.results) if value in group]
            base = tuple(c for c in base if len({c.results[place] for place in places}) <= 1)
        if not base:
            raise ConstraintError(
                f"results of {op.name} that must be sharded alike have no sharding in common",
                where=op.source or op.name,
                fix="take one of them out of its shard_alike group",
            )
        return base

    def _manual(self, op: Op, base: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
        """Inside a shard_map body the free axes cut what the manual ones have left."""
        parts = self.costing.parts
        outer = parse_sharding(op.pinned)
        mine = {p for axis in self._entered_axes(op) for p in parts.parts_by_axis.get(axis, ())}
        prefix = tuple(tuple(p for p in dim if p in mine) for dim in parts.to_layout(outer))
        found = []
        for candidate in base:
            local = candidate.results[0]
            if mine.intersection(p for dim in local for p in dim):
                continue
            whole = tuple(head + tail for head, tail in zip(prefix, local, strict=True))
            if op.kind is OpKind.ENTER_MANUAL:
                found.append(Candidate((whole,), (local,), 1))
            else:
                found.append(Candidate((local,), (whole,), 1))
        return tuple(found)

    def _entered_axes(self, op: Op) -> tuple[str, ...]:
        """Axes made manual by the shard_map whose border this op is."""
        if op.kind is OpKind.ENTER_MANUAL:
            region = next(
                r
                for r in self.graph.regions
                if r.kind == "manual" and r.parent == op.region and r.start > op.index
            )
        else:
            region = next(
                r
                for r in reversed(self.graph.regions)
                if r.kind == "manual" and r.parent == op.region and r.stop <= op.index
            )
        return region.manual_axes

    # -- reshards -------------------------------------------------------------------------------

    def _make_tables(self, nodes: list[Op]) -> None:
        """One all-pairs table per tensor type, over every layout some op may give or want."""
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
                        layouts.setdefault(_side(candidate, is_result)[position])
        for (shape, bits), layouts in universe.items():
            for candidate in self._maker.of_rule(identity_rule(shape)):
                layouts.setdefault(candidate.results[0])
            table = self._resharder.table(tuple(sorted(layouts)), shape, bits)
            self._tables[shape, bits] = table

    def _type(self, value: int) -> tuple[tuple[int, ...], int]:
        found = self.graph.values[value]
        return found.shape, found.bits

    def _layout_indices(
        self, candidates: tuple[Candidate, ...], is_result: bool, position: int, value: int
    ) -> IntArray:
        table = self._tables[self._type(value)]
        key = (id(candidates), is_result, position, id(table))
        found = self._indices.get(key)
        if found is None:
            indices = np.array(
                [table.index[_side(c, is_result)[position]] for c in candidates], dtype=np.int64
            )
            found = (candidates, indices)
            self._indices[key] = found
        return found[1]

    def _edges(
        self, nodes: list[Op], node_by_op: Mapping[int, int]
    ) -> tuple[list[Edge], list[EdgeMemory]]:
        edges: list[Edge] = []
        copies: list[EdgeMemory] = []
        for op in nodes:
            for position, value in enumerate(op.operands):
                producer = self.graph.ops[self.graph.values[value].op]
                if producer.index not in node_by_op or producer.index == op.index:
                    continue
                if not self.graph.values[value].shape:
                    continue
                place = producer.results.index(value)
                rows = self._layout_indices(self._candidates[producer.index], True, place, value)
                columns = self._layout_indices(self._candidates[op.index], False, position, value)
                table = self._tables[self._type(value)]
                repeat = _reads(op, position)
                costs = self._edge_costs(table, rows, columns, repeat)
                earlier = _earlier_reads(op, position)
                if earlier:  # what one read of the op needs moved is there for its other reads
                    shared = self._shared_reads(op, value, columns, earlier)
                    if shared.all():
                        continue
                    costs = np.where(shared, 0, costs)
                edges.append(Edge(node_by_op[producer.index], node_by_op[op.index], costs))
                copy = self._copy(op, table, rows, columns, value)
                if copy is not None:
                    copies.append(replace(copy, edge=len(edges) - 1))
        return edges, copies

    def _shared_reads(
        self, op: Op, value: int, columns: IntArray, earlier: list[int]
    ) -> npt.NDArray[np.bool_]:
        """bool[num_candidates]: whether an earlier read of the same value has the same need."""
        candidates = self._candidates[op.index]
        reads = [self._layout_indices(candidates, False, place, value) for place in earlier]
        shared: npt.NDArray[np.bool_] = np.any([read == columns for read in reads], axis=0)
        return shared

    def _edge_costs(
        self, table: ReshardTable, rows: IntArray, columns: IntArray, repeat: float
    ) -> IntArray:
        key = (id(table), id(rows), id(columns), hash(repeat))
        found = self._costs.get(key)
        if found is None:
            seconds = table.seconds[np.ix_(rows, columns)]
            found = ((table, rows, columns), _picoseconds(seconds * repeat))
            self._costs[key] = found
        return found[1]

    def _copy(
        self, op: Op, table: ReshardTable, rows: IntArray, columns: IntArray, value: int
    ) -> EdgeMemory | None:
        """Memory that a reshard of an operand takes, for an edge still to be numbered."""
        owner = self.buffers.owner[value]
        if op.kind is OpKind.RESULT and owner in self._reused:
            usage = self._outgrown_bytes(table, rows, columns, value)
            return None if usage is None else EdgeMemory(-1, *self.buffers.intervals[owner], usage)
        usage = self._copy_bytes(table, rows, columns, value)
        if usage is None:
            return None
        stop = len(self.graph.ops) if op.kind is OpKind.RESULT else carry_stop(self.graph, op)
        return EdgeMemory(-1, op.index, stop, usage)

    def _copy_bytes(
        self, table: ReshardTable, rows: IntArray, columns: IntArray, value: int
    ) -> IntArray | None:
        """int64[num_rows, num_columns]: bytes of the copy a reshard makes; None: negligible."""
        total = self.graph.values[value].num_bytes
        if total < self._negligible_bytes:
            return None
        key = (id(table), id(rows), id(columns), -1)
        found = self._costs.get(key)
        if found is None:
            pieces = self._pieces(table)[columns]
            local = np.broadcast_to(
                self._temporary(self.graph.values[value]) // pieces, (len(rows), len(columns))
            )
            if id(table) not in self._moves:
                self._moves[id(table)] = _moves_data(table)
            moved = self._moves[id(table)][np.ix_(rows, columns)]
            found = ((table, rows, columns), np.where(moved, local, 0).astype(np.int64))
            self._costs[key] = found
        return found[1] if found[1].any() else None

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

    def _ties(self, node_by_op: Mapping[int, int]) -> list[Edge]:
        ends: dict[tuple[int, bool, int], TiedTensor] = {}

        def end(op: Op, value: int) -> TiedTensor:
            key = (op.index, bool(op.results), _place_of(op, value))
            if key not in ends:
                layouts = tuple(_side(c, key[1])[key[2]] for c in self._candidates[op.index])
                ends[key] = TiedTensor(node_by_op[op.index], layouts, self._end_label(op, value))
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
        refuse_clashes(ties)
        return [
            Edge(a.node, b.node, unequal(a.layouts, b.layouts, FORBIDDEN))
            for a, b in ((tie.first, tie.second) for tie in ties)
            if a.node != b.node
        ]

    def _end_label(self, op: Op, value: int) -> str:
        pin = self._pins.get(op.index, {}).get(value)
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
            tuple((self._type(v), self.graph.values[v].dtype) for v in values),
            tuple(self.buffers.is_stored[v] for v in values),
            tuple(self.buffers.owner[v] == v for v in op.results),
        )
        found = self._own_costs.get(key)
        if found is None:
            seconds = self.costing.candidate_seconds(self.graph, self.buffers, op, candidates)
            found = _picoseconds(seconds * op.repeat)
            self._own_costs[key] = found
        return found

    def _node_memory(self, node_by_op: Mapping[int, int]) -> list[NodeMemory]:
        terms = []
        cache: dict[tuple[int, int, int], tuple[object, IntArray]] = {}
        for value in self.graph.values:
            start, stop = self.buffers.intervals[value.index]
            if stop <= start or value.index in self._reused or value.op not in node_by_op:
                continue
            op = self.graph.ops[value.op]
            candidates = self._candidates[op.index]
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
            terms.append(NodeMemory(node_by_op[op.index], start, stop, usage))
            terms += self._layout_copies(node_by_op[op.index], op, candidates)
            partial = self._partial_bytes(op, candidates, held, usage)
            if partial is not None:
                terms.append(NodeMemory(node_by_op[op.index], start, start + 1, partial))
        return terms

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
        if self.memory_limit is not None:
            return self.memory_limit * NEGLIGIBLE_SHARE
        held = sum(self.graph.values[op.results[0]].num_bytes for op in self.graph.arguments)
        return held * NEGLIGIBLE_SHARE / self.costing.parts.mesh.num_devices

    def _partial_bytes(
        self, op: Op, candidates: tuple[Candidate, ...], total: int, usage: IntArray
    ) -> IntArray | None:
        """Bytes a result takes beyond its final size before it is scattered."""
        if len(op.results) != 1 or not any(c.scattered for c in candidates):
            return None
        if total < self._negligible_bytes:
            return None
        before = [
            total // self.costing.parts.num_shards(p for dim in c.partial for p in dim)
            if c.scattered
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


def _reads(op: Op, position: int) -> float:
    """How often an op reads an operand."""
    return op.operand_repeats[position] if op.operand_repeats else op.repeat


def _earlier_reads(op: Op, position: int) -> list[int]:
    """Earlier operands of an op that are the same value, read as often."""
    return [
        place
        for place in range(position)
        if op.operands[place] == op.operands[position] and _reads(op, place) == _reads(op, position)
    ]


def _side(candidate: Candidate, is_result: bool) -> tuple[Layout, ...]:
    return candidate.results if is_result else candidate.operands


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


def _place_of(op: Op, value: int) -> int:
    """Where an op makes a value, or reads it where it makes none."""
    return (op.results or op.operands).index(value)


@dataclass(frozen=True, slots=True, eq=False)
class Decoded:
    """The chosen candidate of every op, and the layout of every value."""

    candidates: Mapping[int, Candidate]  # by op index
    layouts: tuple[Layout, ...]  # by value index


def decode(encoded: Encoded, choices: Sequence[int]) -> Decoded:
    """Read a solver's choices back.

    Values that every device can make itself follow their readers, as far as those agree: what one
    reader wants cut further it cuts for itself.
    """
    graph = encoded.graph
    chosen = {
        op: encoded.candidates[node][choice]
        for node, (op, choice) in enumerate(zip(encoded.ops, choices, strict=True))
    }
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
    return Decoded(chosen, final)


def _common(layout: Layout | None, wanted: Layout) -> Layout:
    """What two layouts cut alike, from the major end of every dimension on."""
    if layout is None:
        return wanted
    return tuple(
        tuple(a for a, b in takewhile(lambda pair: pair[0] == pair[1], zip(*dims, strict=False)))
        for dims in zip(layout, wanted, strict=True)
    )
