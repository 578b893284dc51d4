"""Seconds of look-ups and scatters, with the tiles that narrow rows do not fill."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from autoshard.costing.candidate_arrays import written_layouts
from autoshard.costing.cost_term import Candidates, FloatArray
from autoshard.costing.model_dtype import model_dtype
from autoshard.costing.program_facts import ProgramFacts
from autoshard.graph.buffer_owners import updates_copy
from autoshard.graph.program import Op, OpKind
from autoshard.graph.row_lookups import takes_rows
from autoshard.layouts import Layout

LOOK_UPS = frozenset({"gather", "dynamic_gather", "scatter"})
"""Ops that read elements where indices say, or add to them."""


@dataclass(frozen=True, slots=True)
class LookUps:
    """Kernels of gathers and scatters.

    A look-up reads as much as it makes. A scatter reads what it adds, and reads and writes what it
    adds that to; before, all of its result is filled, unless it is there already.
    """

    facts: ProgramFacts
    is_sent: ClassVar[bool] = False

    def key(self, op: Op) -> Hashable | None:
        if op.kind is not OpKind.COMPUTE or op.name not in LOOK_UPS or op.declared is not None:
            return None
        buffers, tiles = self.facts.buffers, self.facts.tiles
        return (
            buffers.reads[op.index],
            tiles.kind(op.results[0]),
            self._writes(op),
            takes_rows(self.facts.graph, op),
            op.moved_windows,
            updates_copy(self.facts.graph, buffers.owner, op),
        )

    def _writes(self, op: Op) -> bool:
        buffers, value = self.facts.buffers, op.results[0]
        return buffers.is_stored[value] and buffers.owner[value] == value

    def seconds(self, op: Op, candidates: Candidates) -> FloatArray:
        """float64[num_candidates]: of one run."""
        costing, is_scatter = self.facts.costing, op.name == "scatter"
        reads = self.facts.buffers.reads[op.index]
        arrays, writes = costing.arrays(candidates), self._writes(op)
        num_bytes = self._row_bytes(op, candidates, is_scatter=is_scatter)
        num_bytes = num_bytes * (3.0 if is_scatter else 1.0 + writes)
        if len(op.operands) > 1:
            num_bytes += reads[1].num_bytes / arrays.operand_shards[1]
        dtype = model_dtype(self.facts.graph.values[op.operands[0]].dtype)
        flops = op.flops / arrays.cut
        seconds = costing.model.compute_seconds(flops, num_bytes, dtype, op.op_class.value)
        if is_scatter and writes:
            passes = self._filling_passes(op)
            seconds = seconds + passes * self._filling_seconds(op, candidates)
        if not is_scatter:
            seconds = seconds + self._mask_seconds(op, candidates)
        return np.asarray(seconds + self._loop_seconds(op, candidates))

    def _row_bytes(self, op: Op, candidates: Candidates, *, is_scatter: bool) -> FloatArray:
        """float64[num_candidates]: bytes of what is looked up or added, rows in whole lanes."""
        value, layouts = op.results[0], written_layouts(candidates)
        if is_scatter:
            value, layouts = op.operands[-1], [c.operands[-1] for c in candidates]
        if takes_rows(self.facts.graph, op):
            return self.facts.tiles.bytes_by_row(value, layouts)
        return self._local_bytes(value, layouts)

    def _local_bytes(self, value: int, layouts: Sequence[Layout]) -> FloatArray:
        num_bytes, parts = self.facts.graph.values[value].num_bytes, self.facts.costing.parts
        return np.array([num_bytes / parts.num_pieces(layout) for layout in layouts])

    def _filling_passes(self, op: Op) -> float:
        """Passes over the result of a scatter that write zeros, or a copy, to be added to.

        Its own kernel makes them; none where what it adds to is there.
        """
        if not self.facts.buffers.reads[op.index][0].num_bytes:
            return 1.0
        return 2.0 if updates_copy(self.facts.graph, self.facts.buffers.owner, op) else 0.0

    def _filling_seconds(self, op: Op, candidates: Candidates) -> FloatArray:
        """float64[num_candidates]: seconds in which the result of a scatter is written once."""
        layouts, value = written_layouts(candidates), op.results[0]
        is_padded = takes_rows(self.facts.graph, op)
        padded = self.facts.tiles.row_bytes(value, layouts) if is_padded else None
        filled = self._local_bytes(value, layouts) if padded is None else padded
        return np.asarray(filled / self.facts.costing.model.hardware.memory.bytes_per_second)

    def _loop_seconds(self, op: Op, candidates: Candidates) -> FloatArray | float:
        """float64[num_candidates]: seconds of the kernels that run for one window after another.

        Source: rows written into a cache, one position a sequence, with `vmap` of
            `dynamic_update_slice`: 5 us each on a v5e and a v5p, by libtpu 0.0.52.
        """
        costing = self.facts.costing
        kernels = op.moved_windows * costing.backend.fusion.kernels_per_window
        if not kernels:
            return 0.0
        return kernels / costing.arrays(candidates).operand_shards[1] * costing.launch_seconds

    def _mask_seconds(self, op: Op, candidates: Candidates) -> FloatArray:
        """float64[num_candidates]: seconds in which rows of other devices' pieces are zeroed.

        Only where a table is looked up in pieces. Tiles that rows fill pass once, others three
        times: rows, their mask and what is written. Where copies lie in HBM, mask and indices are
        copied by kernels of their own.
        """
        costing, value = self.facts.costing, self.facts.graph.values[op.results[0]]
        is_masked = np.array([bool(c.reduced or c.scattered) for c in candidates])
        if not is_masked.any() or not costing.backend.layout.is_tiled:
            return np.zeros(len(candidates))
        local = value.num_bytes / costing.arrays(candidates).result_shards[0]
        tiles = self.facts.tiles.local_bytes(value.index, written_layouts(candidates))
        passed = local if tiles is None else np.where(tiles > local, 3.0 * tiles, local)
        copied = 0 if costing.backend.memory.matmul_results_in_vmem else 2
        seconds = costing.kernel_seconds(passed, model_dtype(value.dtype))
        return np.where(is_masked, seconds + copied * costing.launch_seconds, 0.0)
