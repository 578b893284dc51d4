"""Seconds of the collectives that the user wrote, in a `shard_map` body."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from autoshard.costing.cost_term import Candidates, FloatArray
from autoshard.costing.program_facts import ProgramFacts
from autoshard.graph.program import Op
from cost_models import AxisPart


@dataclass(frozen=True, slots=True)
class WrittenCollectives:
    """Collectives of the program itself."""

    facts: ProgramFacts
    is_sent: ClassVar[bool] = True

    def key(self, op: Op) -> Hashable | None:
        return op.collective

    def seconds(self, op: Op, candidates: Candidates) -> FloatArray:
        """float64[num_candidates]: of one run."""
        assert op.collective is not None
        costing, graph = self.facts.costing, self.facts.graph
        num_bytes = np.array([costing.written_bytes(graph, op, c) for c in candidates], dtype=float)
        refs, _ = costing.written_axes(op.collective)
        mesh = costing.parts.mesh
        axes = tuple(AxisPart(ref.name, ref.pre_size, ref.size_on(mesh)) for ref in refs)
        return costing.collective_seconds(op.collective.kind, axes, num_bytes)
