"""The only door to `solvers`: the planning problem as integers, and the answer back as layouts.

One node per op, one choice per candidate. A node costs the op's own time; an edge costs the
reshard of one operand. Memory terms hold bytes per device over op indices. Costs are picoseconds.
Encode and decode are a pair: `decode(encoded, result.choices)`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from autoshard.candidates import Candidate, CandidateMaker
from autoshard.costing import Costing
from autoshard.errors import ConstraintError
from autoshard.graph.buffers import Buffers, carry_stop
from autoshard.graph.program import Graph, Op, OpClass, OpKind
from autoshard.graph.rule import identity_rule
from autoshard.layouts import Layout, MeshParts, refines
from autoshard.reshard import Resharder, ReshardTable
from autoshard.sharding import AxisRef, Sharding, parse_sharding
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
    """

    graph: Graph
    buffers: Buffers
    costing: Costing
    wishes: Wishes
    memory_limit: int | None
    _maker: CandidateMaker = field(init=False)
    _resharder: Resharder = field(init=False)
    _candidates: dict[int, tuple[Candidate, ...]] = field(default_factory=dict)
    _tables: dict[tuple[tuple[int, ...], int], ReshardTable] = field(default_factory=dict)
    _indices: dict[tuple[int, bool, int, int], tuple[object, IntArray]] = field(
        default_factory=dict
    )
    _costs: dict[tuple[int, ...], tuple[object, IntArray]] = field(default_factory=dict)
    _own_costs: dict[Hashable, IntArray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._maker = CandidateMaker(self.costing.parts)
        self._resharder = Resharder(self.costing.parts, self.costing)

    def encode(self) -> Encoded:
        """Enumerate, price and assemble."""
        nodes = [op for op in self.graph.ops if self._has_choice(op)]
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
        if op.kind in (OpKind.ENTER_MANUAL, OpKind.LEAVE_MANUAL):
            return self._manual(op, base)
        wish, where = self._wish(op)
        if wish is None:
            return base
        return self._admitted(op, base, wish, where)

    def _wish(self, op: Op) -> tuple[Sharding | None, str]:
        if op.kind is OpKind.ARGUMENT:
            value = self.graph.values[op.results[0]]
            return self.wishes.arguments[op.index], f"argument {value.name}: {value.type_text}"
        if op.kind is OpKind.RESULT:
            value = self.graph.values[op.operands[0]]
            position = op.index - len(self.graph.ops) + len(self.wishes.results)
            return self.wishes.results[position], f"{op.name}: {value.type_text}"
        if op.kind is OpKind.CONSTRAINT:
            value = self.graph.values[op.operands[0]]
            where = f"sharding constraint at {op.source or 'unknown line'}: {value.type_text}"
            return parse_sharding(op.pinned), where
        for value_index in op.results:
            if value_index in self.wishes.values:
                value = self.graph.values[value_index]
                return self.wishes.values[value_index], f"value at {op.source}: {value.type_text}"
        return None, ""

    def _admitted(
        self, op: Op, base: tuple[Candidate, ...], wish: Sharding, where: str
    ) -> tuple[Candidate, ...]:
        """The candidates a wish admits; a closed wish that is no candidate becomes one."""
        parts = self.costing.parts
        shape = self.graph.values[(op.results or op.operands)[0]].shape
        self._check_wish(wish, shape, where)
        asked = parts.to_layout(wish)
        replicated = {p for ref in wish.replicated for p in parts.parts_of(ref)}

        def admits(layout: Layout) -> bool:
            if replicated.intersection(p for dim in layout for p in dim):
                return False
            return all(
                have[: len(want)] == want if dim.is_open else have == want
                for have, want, dim in zip(layout, asked, wish.dims, strict=True)
            )

        kept = tuple(c for c in base if admits((c.results or c.operands)[0]))
        if kept:
            return kept
        if op.kind is OpKind.COMPUTE:
            raise ConstraintError(
                f"no way to cut {op.name} ends in {wish}",
                where=where,
                fix="put a sharding constraint after it, which may reshard",
            )
        num_operands, num_results = len(op.operands), len(op.results)
        return (Candidate((asked,) * num_operands, (asked,) * num_results, 1),)

    def _check_wish(self, wish: Sharding, shape: tuple[int, ...], where: str) -> None:
        mesh = self.costing.parts.mesh
        if len(wish.dims) != len(shape):
            raise ConstraintError(
                f"the sharding has {len(wish.dims)} dimensions, the tensor has {len(shape)}",
                where=where,
                fix="give one dimension sharding per tensor dimension",
            )
        for dim, (dim_sharding, size) in enumerate(zip(wish.dims, shape, strict=True)):
            shards = 1
            for ref in dim_sharding.axes:
                if ref.name not in mesh.sizes:
                    raise ConstraintError(
                        f'dimension {dim} uses axis "{ref.name}", which the mesh does not have',
                        where=where,
                        fix=f"use one of {', '.join(mesh.axis_names)}, or add it to the mesh",
                    )
                shards *= ref.size_on(mesh)
            if size % shards:
                raise ConstraintError(
                    f"dimension {dim} has size {size}, which {shards} shards do not divide",
                    where=where,
                    fix=f"pad it to {-(-size // shards) * shards}, or cut another dimension",
                )

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
                if producer.index not in node_by_op or not self.graph.values[value].shape:
                    continue
                repeat = op.operand_repeats[position] if op.operand_repeats else op.repeat
                place = producer.results.index(value)
                rows = self._layout_indices(self._candidates[producer.index], True, place, value)
                columns = self._layout_indices(self._candidates[op.index], False, position, value)
                if producer.index == op.index:
                    continue
                table = self._tables[self._type(value)]
                costs = self._edge_costs(table, rows, columns, repeat)
                edges.append(Edge(node_by_op[producer.index], node_by_op[op.index], costs))
                usage = self._copy_bytes(table, rows, columns, value)
                if usage is not None:
                    stop = carry_stop(self.graph, op)
                    copies.append(EdgeMemory(len(edges) - 1, op.index, stop, usage))
        return edges, copies

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

    def _copy_bytes(
        self, table: ReshardTable, rows: IntArray, columns: IntArray, value: int
    ) -> IntArray | None:
        """int64[num_rows, num_columns]: bytes of the copy a reshard makes; None: negligible."""
        total = self.graph.values[value].num_bytes
        if total < self._negligible_bytes():
            return None
        key = (id(table), id(rows), id(columns), -1)
        found = self._costs.get(key)
        if found is None:
            pieces = self._pieces(table)[columns]
            local = np.broadcast_to(total // pieces, (len(rows), len(columns)))
            moved = _moves_data(table)[np.ix_(rows, columns)]
            found = ((table, rows, columns), np.where(moved, local, 0).astype(np.int64))
            self._costs[key] = found
        return found[1] if found[1].any() else None

    def _pieces(self, table: ReshardTable) -> IntArray:
        parts = self.costing.parts
        return np.array(
            [parts.num_shards(p for dim in layout for p in dim) for layout in table.layouts],
            dtype=np.int64,
        )

    # -- ties -----------------------------------------------------------------------------------

    def _ties(self, node_by_op: Mapping[int, int]) -> list[Edge]:
        edges = []
        for group in self.graph.groups:
            held = [v for v in group if self.graph.values[v].op in node_by_op]
            for first, second in pairwise(held):
                edges += self._tie(first, second, node_by_op, "shard_alike group")
        arguments, results = self.graph.arguments, self.graph.results
        for argument, result in self.wishes.alike:
            if not self.graph.values[arguments[argument].results[0]].shape:
                continue
            u, v = arguments[argument], results[result]
            costs = self._equal(
                [c.results[0] for c in self._candidates[u.index]],
                [c.operands[0] for c in self._candidates[v.index]],
            )
            edges.append(Edge(node_by_op[u.index], node_by_op[v.index], costs))
        return edges

    def _tie(self, first: int, second: int, node_by_op: Mapping[int, int], why: str) -> list[Edge]:
        sides = []
        for value in (first, second):
            op = self.graph.ops[self.graph.values[value].op]
            place = op.results.index(value)
            layouts = [c.results[place] for c in self._candidates[op.index]]
            sides.append((op, layouts))
        (u, rows), (v, columns) = sides
        if u.index == v.index:
            return []
        costs = self._equal(rows, columns)
        if (costs >= FORBIDDEN).all():
            raise ConstraintError(
                f"two members of a {why} cannot be sharded alike: "
                f"{_where(self.graph, first)} and {_where(self.graph, second)}",
                where=f"{u.source or u.name} and {v.source or v.name}",
                fix="remove one of them from the group, or the constraint that fixes it",
            )
        return [Edge(node_by_op[u.index], node_by_op[v.index], costs)]

    def _equal(self, rows: list[Layout], columns: list[Layout]) -> IntArray:
        same = [[0 if row == column else FORBIDDEN for column in columns] for row in rows]
        return np.array(same, dtype=np.int64)

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
        reused = self._reused_results()
        terms = []
        cache: dict[tuple[int, int, int], tuple[object, IntArray]] = {}
        for value in self.graph.values:
            start, stop = self.buffers.intervals[value.index]
            if stop <= start or value.index in reused or value.op not in node_by_op:
                continue
            op = self.graph.ops[value.op]
            candidates = self._candidates[op.index]
            place = op.results.index(value.index)
            key = (id(candidates), place, value.num_bytes)
            if key not in cache:
                pieces = [
                    self.costing.parts.num_shards(p for dim in c.results[place] for p in dim)
                    for c in candidates
                ]
                usage = value.num_bytes // np.array(pieces, dtype=np.int64)
                cache[key] = (candidates, usage)
            usage = cache[key][1]
            terms.append(NodeMemory(node_by_op[op.index], start, stop, usage))
            terms += self._layout_copies(node_by_op[op.index], op, candidates)
            partial = self._partial_bytes(op, candidates, value.num_bytes, usage)
            if partial is not None:
                terms.append(NodeMemory(node_by_op[op.index], start, start + 1, partial))
        return terms

    def _layout_copies(
        self, node: int, op: Op, candidates: tuple[Candidate, ...]
    ) -> Iterator[NodeMemory]:
        """Copies that XLA's CPU backend makes for the kernel gradient of a convolution.

        That convolution contracts over the batch, so both operands are wanted in another dimension
        order; each copy is made as soon as its operand is there (seen in buffer assignments of
        jaxlib 0.10.2).
        """
        if self.costing.model.hardware.backend != "cpu" or op.op_class is not OpClass.CONVOLUTION:
            return
        assert op.rule is not None
        if not set(op.rule.operands[0][0]) <= op.rule.reduction:
            return
        for position, value in enumerate(op.operands):
            found = self.graph.values[value]
            pieces = [
                self.costing.parts.num_shards(p for dim in c.operands[position] for p in dim)
                for c in candidates
            ]
            usage = found.num_bytes // np.array(pieces, dtype=np.int64)
            yield NodeMemory(node, max(found.op, 0), op.index + 1, usage)

    def _negligible_bytes(self) -> float:
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
        if total < self._negligible_bytes():
            return None
        before = [
            total // self.costing.parts.num_shards(p for dim in c.partial for p in dim)
            if c.scattered
            else 0
            for c in candidates
        ]
        return np.maximum(np.array(before, dtype=np.int64) - usage, 0)

    def _reused_results(self) -> set[int]:
        """Values that end in the buffer of a donated argument."""
        donated = set(self.graph.donated)
        results = self.graph.results
        return {
            self.buffers.owner[results[result].operands[0]]
            for argument, result in self.wishes.alike
            if argument in donated
        } - {op.results[0] for op in self.graph.arguments}


def _side(candidate: Candidate, is_result: bool) -> tuple[Layout, ...]:
    return candidate.results if is_result else candidate.operands


def _picoseconds(seconds: npt.NDArray[np.float64]) -> IntArray:
    scaled = np.where(np.isfinite(seconds), seconds * PICOSECONDS, float(FORBIDDEN))
    return np.minimum(np.rint(scaled), float(FORBIDDEN)).astype(np.int64)


def _moves_data(table: ReshardTable) -> npt.NDArray[np.bool_]:
    """bool[num_layouts, num_layouts]: whether a reshard is more than cutting further."""
    size = len(table.layouts)
    moved = np.ones((size, size), dtype=np.bool_)
    for i, start in enumerate(table.layouts):
        for j, end in enumerate(table.layouts):
            if refines(end, start):
                moved[i, j] = False
    return moved


def _where(graph: Graph, value: int) -> str:
    found = graph.values[value]
    return found.name or f"{found.type_text} from {graph.ops[found.op].name}"


@dataclass(frozen=True, slots=True, eq=False)
class Decoded:
    """The chosen candidate of every op, and the layout of every value."""

    candidates: Mapping[int, Candidate]  # by op index
    layouts: tuple[Layout, ...]  # by value index


def decode(encoded: Encoded, choices: Sequence[int]) -> Decoded:
    """Read a solver's choices back. Values every device can make itself follow their reader."""
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
        for position, value in enumerate(op.operands):
            if layouts[value] is None and wanted is not None:
                layouts[value] = wanted[position]
    final = tuple(
        layout if layout is not None else ((),) * len(value.shape)
        for layout, value in zip(layouts, graph.values, strict=True)
    )
    return Decoded(chosen, final)
