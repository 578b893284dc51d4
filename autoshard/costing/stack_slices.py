"""Seconds that loops take for slices of stacks, beside the ops that read them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from math import ceil, inf, prod
from typing import ClassVar

import numpy as np

from autoshard.costing.cost_term import Candidates, FloatArray
from autoshard.costing.costing import Costing
from autoshard.costing.program_facts import ProgramFacts
from autoshard.graph.program import Op, OpKind, Value
from autoshard.layouts import Layout


@dataclass(frozen=True, slots=True)
class StackSlices:
    """Waits for slices, and copies of those whose rows lie apart.

    On a v5p matmuls wait for slices of what the loop before stacked: nothing runs beside which that
    is brought. Rows of a slice of a stack that was transposed are far apart; a kernel of its own
    puts them together.
    """

    facts: ProgramFacts
    is_sent: ClassVar[bool] = False

    def key(self, op: Op) -> Hashable | None:
        if op.kind is not OpKind.COMPUTE:
            return self._as_stacked_seconds(op) or None
        if not op.results or op.collective is not None:
            return None
        return self.facts.stacks.turned.get(op.results[0])

    def _as_stacked_seconds(self, op: Op) -> float:
        if self.facts.vmem.holds_copies:
            return 0.0
        return self.facts.stacks.as_stacked.get(op.index, 0.0) * self.facts.costing.launch_seconds

    def seconds(self, op: Op, candidates: Candidates) -> FloatArray:
        """float64[num_candidates]: of one run."""
        if op.kind is not OpKind.COMPUTE:
            return np.full(len(candidates), self._as_stacked_seconds(op))
        costing, made = self.facts.costing, self.facts.graph.values[op.results[0]]
        slices = [slice_seconds(costing, made, one.results[0]) for one in candidates]
        return self.facts.stacks.turned[made.index] * np.array(slices)


def seconds_of_rows(costing: Costing, stack: Value, layout: Layout) -> float:
    """Of putting the rows of a slice together, where a matmul makes the stack.

    It lies with slices as rows, transposed or not, if these fill lanes and its own rows do not.

    Source: loops over what a matmul makes, with a bias or without, transposed or not, by libtpu
        0.0.52 for a v5e and a v5p: 16 to 512 slices of 8 to 512 rows.
    """
    lanes = costing.backend.layout.num_lanes
    num_slices, num_rows, _ = costing.parts.local_shape(layout, stack.shape)
    is_apart = num_slices % lanes == 0 and num_rows % lanes != 0
    return slice_seconds(costing, stack, layout) if is_apart else 0.0


def slice_seconds(costing: Costing, stack: Value, layout: Layout) -> float:
    """Of a kernel that puts the rows of one slice of a stack together."""
    policy = costing.backend.layout
    _, *rows, width = costing.parts.local_shape(layout, stack.shape)
    cycles = policy.row_slice_cycles[stack.bits < policy.word_bits]
    cycles *= prod(rows) * ceil(width / policy.num_lanes)
    return costing.launch_seconds + cycles / (costing.model.hardware.compute.clock_hertz or inf)
