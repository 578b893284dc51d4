"""Seconds of what works on rows: look-ups, scatters, and tiles that narrow rows do not fill."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from autoshard.candidates.candidate import Candidate
from autoshard.costing.candidate_arrays import CandidateArrays, candidate_arrays, written_layouts
from autoshard.costing.loop_borders import LoopBorders
from autoshard.costing.model_dtype import model_dtype
from autoshard.costing.move_costs import MoveCosts
from autoshard.costing.narrow_rows import RowTiles
from autoshard.costing.program_facts import GraphFacts
from autoshard.costing.shared_calls import shared_calls
from autoshard.graph.buffers import Buffers
from autoshard.graph.loop_sums import loop_sums
from autoshard.graph.program import Graph, Op, OpClass
from autoshard.graph.row_lookups import takes_rows
from autoshard.layouts import Layout
from cost_models import ElementPasses, memory_efficiency

FloatArray = npt.NDArray[np.float64]

LOOK_UPS = frozenset({"gather", "dynamic_gather", "scatter"})
"""Ops that read elements where indices say, or add to them."""


@dataclass(slots=True)
class RowCosts(MoveCosts):
    """Seconds that single devices take for what lies in rows."""

    _facts: GraphFacts | None = None
    _shards: dict[int, tuple[tuple[Candidate, ...], CandidateArrays]] = field(default_factory=dict)

    def rows_of(self, graph: Graph, op: Op) -> tuple[object, ...]:
        """What the price of an op depends on by rows and tiles, and no other fact of it tells."""
        tiles = self._facts_of(graph).tiles
        shared = bool(op.results) and self._is_shared_in_rows(graph, op)
        return (shared, *(tiles.kind(value) for value in (*op.operands, *op.results)))

    def is_in_rows(self, graph: Graph, value: int) -> bool:
        """Whether the last dimension of a value fills the lanes of tiles, however short it is."""
        return value in self._facts_of(graph).tiles.in_rows

    def row_copy_seconds(self, graph: Graph, value: int, layouts: Sequence[Layout]) -> FloatArray:
        """float64[num_layouts]: seconds in which pieces are copied into rows or back, if padded."""
        padded = self._facts_of(graph).tiles.row_bytes(value, layouts)
        if padded is None:
            return np.zeros(len(layouts))
        local = self._local_bytes(graph, value, layouts)
        return np.where(padded > local, self.copy_seconds(padded + local), 0.0)

    def look_up_seconds(
        self, graph: Graph, buffers: Buffers, op: Op, candidates: tuple[Candidate, ...]
    ) -> FloatArray:
        """float64[num_candidates]: seconds of a look-up or a scatter, rows in whole tiles.

        A look-up reads as much as it makes. A scatter reads what it adds, and reads and writes what
        it adds that to; before, all of its result is filled, unless it is there already.
        """
        is_scatter = op.name == "scatter"
        arrays, value = self._arrays(candidates), op.results[0]
        writes = buffers.is_stored[value] and buffers.owner[value] == value
        num_bytes = self._row_bytes(graph, op, candidates, is_scatter=is_scatter)
        num_bytes = num_bytes * (3.0 if is_scatter else 1.0 + writes)
        if len(op.operands) > 1:
            num_bytes += buffers.reads[op.index][1].num_bytes / arrays.operand_shards[1]
        dtype = model_dtype(graph.values[op.operands[0]].dtype)
        flops = op.flops / arrays.cut
        seconds = self.model.compute_seconds(flops, num_bytes, dtype, op.op_class.value)
        if is_scatter and writes:
            seconds = seconds + self._filling_seconds(graph, buffers, op, candidates)
        if not is_scatter:
            seconds = seconds + self._mask_seconds(graph, op, candidates)
        return np.asarray(seconds + self._table_seconds(graph, op, candidates))

    def _row_bytes(
        self, graph: Graph, op: Op, candidates: tuple[Candidate, ...], *, is_scatter: bool
    ) -> FloatArray:
        """float64[num_candidates]: bytes of what is looked up or added, rows in whole lanes."""
        value, layouts = op.results[0], written_layouts(candidates)
        if is_scatter:
            value, layouts = op.operands[-1], [c.operands[-1] for c in candidates]
        if takes_rows(graph, op):
            return self._facts_of(graph).tiles.bytes_by_row(value, layouts)
        return self._local_bytes(graph, value, layouts)

    def _local_bytes(self, graph: Graph, value: int, layouts: Sequence[Layout]) -> FloatArray:
        num_bytes = graph.values[value].num_bytes
        return np.array([num_bytes / self.parts.num_pieces(layout) for layout in layouts])

    def _filling_seconds(
        self, graph: Graph, buffers: Buffers, op: Op, candidates: tuple[Candidate, ...]
    ) -> FloatArray:
        """float64[num_candidates]: seconds in which zeros, or a copy, are written to be added to.

        The scatter's own kernel writes them.
        """
        layouts = written_layouts(candidates)
        value, tiles = op.results[0], self._facts_of(graph).tiles
        padded = tiles.row_bytes(value, layouts) if takes_rows(graph, op) else None
        filled = self._local_bytes(graph, value, layouts) if padded is None else padded
        passes = 2.0 if buffers.reads[op.index][0].num_bytes else 1.0
        return passes * filled / self.model.hardware.memory.bytes_per_second

    def _mask_seconds(self, graph: Graph, op: Op, candidates: tuple[Candidate, ...]) -> FloatArray:
        """float64[num_candidates]: seconds in which rows of other devices' pieces are zeroed.

        Only where a table is looked up in pieces. Tiles that rows fill pass once, others three
        times: rows, their mask and what is written. Where copies lie in device memory, mask and
        indices are copied by kernels of their own.
        """
        value = graph.values[op.results[0]]
        is_masked = np.array([bool(c.reduced or c.scattered) for c in candidates])
        if not is_masked.any() or not self.backend.layout.is_tiled:
            return np.zeros(len(candidates))
        local = value.num_bytes / self._arrays(candidates).result_shards[0]
        tiles = self._facts_of(graph).tiles.local_bytes(value.index, written_layouts(candidates))
        passed = local if tiles is None else np.where(tiles > local, 3.0 * tiles, local)
        if self._passes is not None:
            passed = passed * (self._pass_bytes(self._passes.accessed) * 8.0 / value.bits)
        dtype = model_dtype(value.dtype)
        seconds = self.model.compute_seconds(
            np.zeros_like(passed), passed, dtype, OpClass.ELEMENTWISE.value
        )
        machine = self.model.hardware
        copied = 0 if self.backend.memory.matmul_results_in_vmem else 2
        seconds += copied * machine.compute.kernel_launch_seconds
        return np.where(is_masked, seconds, 0.0)

    def _table_seconds(self, graph: Graph, op: Op, candidates: tuple[Candidate, ...]) -> FloatArray:
        """float64[num_candidates]: seconds in which a table is copied into padded rows, or back."""
        if not takes_rows(graph, op):
            return np.zeros(len(candidates))
        value, layouts = op.operands[0], [c.operands[0] for c in candidates]
        if op.op_class is OpClass.SCATTER:
            value, layouts = op.results[0], written_layouts(candidates)
        return self.row_copy_seconds(graph, value, layouts)

    def _in_tiles(
        self,
        graph: Graph,
        op: Op,
        value: int,
        layouts: Sequence[Layout],
        local: FloatArray,
        pieces: FloatArray,
    ) -> FloatArray:
        """float64[num_layouts]: bytes of a value on a device, of narrow rows whole tiles."""
        if op.op_class in (OpClass.GATHER, OpClass.SCATTER, OpClass.SORT):
            return local
        found = self._facts_of(graph).tiles.local_bytes(value, layouts)
        if found is None:
            return local
        is_padded = found > graph.values[value].num_bytes / pieces
        return np.where(is_padded, np.maximum(local, found), local)

    def _is_shared_in_rows(self, graph: Graph, op: Op) -> bool:
        """Whether several ops read what an op makes in rows."""
        is_in_rows = op.results[0] in self._facts_of(graph).tiles.in_rows
        return is_in_rows and len(graph.consumers[op.results[0]]) > 1

    @property
    def _passes(self) -> ElementPasses | None:
        """What the vector unit takes at most; None where memory is always slower."""
        return self.model.hardware.compute.passes

    def _pass_bytes(self, elements_per_second: float) -> float:
        """Bytes that memory takes, read by element-wise ops, while one element passes."""
        return self._elementwise_speed / elements_per_second

    @property
    def _elementwise_speed(self) -> float:
        """Bytes per second that element-wise ops read and write of device memory."""
        machine = self.model.hardware
        share = memory_efficiency(machine, OpClass.ELEMENTWISE.value)
        return share * machine.memory.bytes_per_second

    def _facts_of(self, graph: Graph) -> GraphFacts:
        """Of one program at a time."""
        if self._facts is None or self._facts.graph is not graph:
            moves = self.backend.collectives.loop_all_reduce_motion
            late = loop_sums(graph) if moves else ()
            self._facts = GraphFacts(
                graph,
                LoopBorders.of(graph, self.backend),
                shared_calls(graph, graph.consumers, late),
                RowTiles.of(graph, self.parts, self.backend.layout),
            )
        return self._facts

    def _arrays(self, candidates: tuple[Candidate, ...]) -> CandidateArrays:
        found = self._shards.get(id(candidates))
        if found is None or found[0] is not candidates:
            found = (candidates, candidate_arrays(self.parts, candidates))
            self._shards[id(candidates)] = found
        return found[1]
