"""Seconds to put an argument that is new in every step (a batch) into device memory."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from autoshard.costing.cost_term import Candidates, FloatArray
from autoshard.costing.program_facts import ProgramFacts
from autoshard.graph.program import Op, OpKind


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Small; without it nothing would speak against giving every device the whole batch."""

    facts: ProgramFacts
    is_sent: ClassVar[bool] = False

    def key(self, op: Op) -> Hashable | None:
        is_new = op.kind is OpKind.ARGUMENT and op.index not in self.facts.graph.donated
        return is_new or None

    def seconds(self, op: Op, candidates: Candidates) -> FloatArray:
        """float64[num_candidates]: of one step."""
        costing = self.facts.costing
        num_bytes = self.facts.graph.values[op.results[0]].num_bytes
        local = num_bytes / costing.arrays(candidates).result_shards[0]
        return np.asarray(local / costing.model.hardware.memory.bytes_per_second)
