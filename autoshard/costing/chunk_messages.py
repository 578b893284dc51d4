"""Seconds of the collectives of matmuls in chunks, with all that they wait for."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

from autoshard.costing.cost_term import Candidates, FloatArray
from autoshard.costing.program_facts import ProgramFacts
from autoshard.graph.program import PRODUCTS, Op


@dataclass(frozen=True, slots=True)
class ChunkMessages:
    """What collective matmuls send, step by step."""

    facts: ProgramFacts
    is_sent: ClassVar[bool] = True

    def key(self, op: Op) -> Hashable | None:
        return op.op_class in PRODUCTS or None

    def seconds(self, op: Op, candidates: Candidates) -> FloatArray:
        """float64[num_candidates]: of one run; 0 for matmuls in one piece."""
        return self.facts.costing.chunk_seconds(self.facts.graph, op, candidates).sent
