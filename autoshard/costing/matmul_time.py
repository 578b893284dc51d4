"""Seconds and bytes of a matmul beside its arithmetic and its operands and results."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from autoshard.costing.candidate_arrays import written_layouts
from autoshard.costing.cost_term import Candidates, FloatArray
from autoshard.costing.local_products import (
    grouped_share,
    has_unit_dims,
    local_products,
    product_factors,
)
from autoshard.costing.program_facts import ProgramFacts
from autoshard.graph.program import Op


def _window_bytes(made: FloatArray | float) -> FloatArray | float:
    """Bytes in VMEM for an element of a window: its sum, and twice what is moved with it."""
    return 4.0 + 2.0 * made


_PLAIN_BYTES = _window_bytes(2.0)
"""Of a matmul that writes bfloat16, whose window is probed."""


class MatmulTime:
    """Starts, windows, and matmuls that are none."""

    def __init__(self, facts: ProgramFacts) -> None:
        self.graph, self.buffers, self.costing = facts.graph, facts.buffers, facts.costing
        self.tiles, self.compute = facts.tiles, facts.costing.model.hardware.compute
        self.backend = facts.costing.backend
        self.layout = self.backend.layout

    def start_seconds(self, op: Op) -> float:
        """Seconds until a matmul is under way.

        In loops of machines that keep matmul results in VMEM nothing has to come from HBM first.
        """
        clock, launch = self.compute.clock_hertz, self.compute.kernel_launch_seconds
        fills = self.layout.mxu_fill_cycles / clock if clock else 0.0
        if self.backend.memory.matmul_results_in_vmem:
            return fills if op.repeat > 1 else launch
        return launch + fills

    def windowed_seconds(
        self,
        op: Op,
        candidates: Candidates,
        reads: Sequence[FloatArray],
        made: FloatArray,
        arithmetic: FloatArray,
    ) -> FloatArray:
        """float64[num_candidates]: seconds of a matmul both of whose operands come from HBM.

        Its result is computed in windows. Each reads its rows and columns of the operands anew,
        beside the arithmetic, and is written once they are summed. Where they do not fit whole,
        the first of them is waited for; windows of operands are half as deep as they are wide.
        What is read and written with the result leaves it smaller windows.

        Args:
            op: A matmul.
            candidates: Of it.
            reads: Bytes that a device reads through each operand, once.
            made: Bytes of its result that it writes, and that it reads and writes for element-wise
                ops that run with it.
            arithmetic: Seconds of it alone.

        Source: matmuls of operands larger than VMEM, of one and two tensors each, 1,024 to 16,384
            summed, by libtpu 0.0.52: within 5 to 10 % on a v4, v5e, v5p and v6e (root mean square).
        """
        assert op.rule is not None
        rate = self.costing.model.hardware.memory.bytes_per_second * self.layout.hbm_window_share
        rows, columns, summed = local_products(self.costing.parts, op.rule, candidates)
        whole = prod(self.graph.values[op.results[0]].shape)
        elements = whole / self.costing.arrays(candidates).result_shards[0]
        side = self.layout.hbm_window * np.sqrt(_PLAIN_BYTES / _window_bytes(made / elements))
        num_bytes = reads[0] * np.maximum(columns / side, 1.0)
        num_bytes += reads[1] * np.maximum(rows / side, 1.0)
        first = np.where(summed > 2 * side, num_bytes * side / 2 / summed, 0.0)
        return np.asarray(np.maximum(arithmetic, num_bytes / rate) + (made + first) / rate)

    def ragged_seconds(self, op: Op, candidates: Candidates) -> FloatArray | float:
        """Seconds of a ragged matmul of all groups beside its arithmetic.

        Rows of its result fill whole lanes.
        """
        clock, cycles = self.compute.clock_hertz, self.layout.ragged_cycles
        is_grouped = grouped_share(op, self.layout.ragged_tile_rows) < 1.0
        if op.name != "ragged_dot" or not clock or not cycles or is_grouped:
            return 0.0
        rows, matrices, groups = (self.graph.values[value].shape for value in op.operands)
        pairs = prod(groups) ** 2
        if len(rows) == len(matrices):
            return cycles[1] * pairs / clock
        (result,) = op.results
        shards = self.costing.arrays(candidates).result_shards[0]
        elements = prod(self.graph.values[result].shape) / shards
        elements *= self.tiles.row_share(result, written_layouts(candidates))
        return np.asarray(cycles[0] * pairs * elements / clock)

    def singly_bytes(self, op: Op, candidates: Candidates) -> FloatArray | None:
        """float64[num_candidates]: as how many bytes products count that are summed singly.

        A matmul of one local row or column is a multiplication and a reduction on vector units; 0
        of others. None where no candidate has one. A batched one is a matmul yet, unless the
        compiler reshapes an operand, to leave out local dimensions of size 1.

        Source: matmuls of bfloat16 and float32[1, 4096] @ [4096, 16384], transposed or not, of
            one column, and batched ones of one query for each of 96 heads or of fewer, by libtpu
            0.0.52 for a v5e and a v5p.
        """
        passes, is_reduced = self.costing.passes, self.backend.fusion.strength_reduces_dots
        if passes is None or not is_reduced or op.name != "dot_general" or op.rule is None:
            return None
        rows, columns, _ = local_products(self.costing.parts, op.rule, candidates)
        is_single = np.minimum(rows, columns) == 1
        if not is_single.any():
            return None
        if product_factors(op.rule).batch:
            is_single &= has_unit_dims(self.costing.parts, op.rule, candidates)
        multiplied = op.flops / 2.0 / self.costing.arrays(candidates).cut
        return np.where(is_single, multiplied * self.costing.pass_bytes(passes.narrowed), 0.0)
