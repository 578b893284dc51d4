"""Seconds that loops take for slices of stacks, beside the ops that read them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from autoshard.costing.cost_term import Candidates, FloatArray
from autoshard.costing.program_facts import ProgramFacts
from autoshard.graph.program import Op, OpKind


@dataclass(frozen=True, slots=True)
class StackSlices:
    """Waits for slices, and copies of those that lie in no order.

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
        pieces = costing.arrays(candidates).result_shards[0]
        num_bytes = 2.0 * made.num_bytes / max(made.shape[0], 1) / pieces
        return self.facts.stacks.turned[made.index] * costing.copy_seconds(num_bytes)
