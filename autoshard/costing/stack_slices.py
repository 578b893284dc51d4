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

    Matmuls wait for slices of a stack that a collective made: on a v5p it lies in HBM then, and in
    VMEM if an element-wise op made it; on a v5e it is sliced by a kernel of its own. On a v5p they
    wait likewise for what the loop before stacked: nothing runs beside which that is brought. Rows
    of a slice of a stack that was transposed are far apart; a kernel of its own puts them together.
    """

    facts: ProgramFacts
    is_sent: ClassVar[bool] = False

    def key(self, op: Op) -> Hashable | None:
        if op.kind is not OpKind.COMPUTE:
            return self._as_stacked_seconds(op) or None
        if not op.results or op.collective is not None:
            return None
        runs = self.facts.stacks.turned.get(op.results[0], 0.0)
        waited = self.facts.waiting_seconds(op.results[0])
        return (runs, waited) if runs or waited else None

    def _as_stacked_seconds(self, op: Op) -> float:
        if self.facts.vmem.holds_copies:
            return 0.0
        return self.facts.stacks.as_stacked.get(op.index, 0.0) * self.facts.costing.launch_seconds

    def seconds(self, op: Op, candidates: Candidates) -> FloatArray:
        """float64[num_candidates]: of one run."""
        if op.kind is not OpKind.COMPUTE:
            return np.full(len(candidates), self._as_stacked_seconds(op))
        costing, value = self.facts.costing, op.results[0]
        waited = self.facts.waiting_seconds(value)
        is_plain = [candidate.streamed is None for candidate in candidates]
        is_sent = np.array([bool(c.reduced or c.scattered) for c in candidates])
        found = np.where(is_sent & is_plain, waited, 0.0)
        runs = self.facts.stacks.turned.get(value, 0.0)
        if runs:
            made = self.facts.graph.values[value]
            pieces = costing.arrays(candidates).result_shards[0]
            num_bytes = 2.0 * made.num_bytes / max(made.shape[0], 1) / pieces
            found = found + runs * costing.copy_seconds(num_bytes)
        return np.asarray(found)
