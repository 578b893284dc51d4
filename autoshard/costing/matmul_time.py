"""Seconds and bytes of a matmul beside its arithmetic and its operands and results."""

from __future__ import annotations

from math import prod

import numpy as np

from autoshard.costing.candidate_arrays import CandidateArrays
from autoshard.costing.cost_term import Candidates, FloatArray
from autoshard.costing.local_products import (
    grouped_share,
    has_unit_dims,
    local_products,
    product_factors,
)
from autoshard.costing.program_facts import ProgramFacts
from autoshard.graph.program import Op


class MatmulTime:
    """Starts, windows, and matmuls that are none."""

    def __init__(self, facts: ProgramFacts) -> None:
        self.graph, self.buffers, self.costing = facts.graph, facts.buffers, facts.costing
        self.compute = facts.costing.model.hardware.compute
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

    def ragged_seconds(self, op: Op, arrays: CandidateArrays) -> FloatArray | float:
        """Seconds of a ragged matmul of all groups beside its arithmetic."""
        clock, cycles = self.compute.clock_hertz, self.layout.ragged_cycles
        is_grouped = grouped_share(op, self.layout.ragged_tile_rows) < 1.0
        if op.name != "ragged_dot" or not clock or not cycles or is_grouped:
            return 0.0
        rows, matrices, groups = (self.graph.values[value].shape for value in op.operands)
        pairs = prod(groups) ** 2
        if len(rows) == len(matrices):
            return cycles[1] * pairs / clock
        elements = prod(self.graph.values[op.results[0]].shape) / arrays.result_shards[0]
        return cycles[0] * pairs * elements / clock

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
