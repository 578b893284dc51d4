"""Seconds of the kernels that sums over pieces of rows take beside their own."""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar

import numpy as np

from autoshard.costing.cost_term import Candidates, FloatArray
from autoshard.costing.program_facts import ProgramFacts
from autoshard.graph.piece_sums import kernels_of_piece_sums
from autoshard.graph.program import Op


class PieceSums:
    """Small kernels, which take the time of a launch."""

    is_sent: ClassVar[bool] = False

    def __init__(self, facts: ProgramFacts) -> None:
        self.launch_seconds = facts.costing.launch_seconds
        self.kernels = kernels_of_piece_sums(facts.graph, facts.costing.backend.layout.num_lanes)

    def key(self, op: Op) -> Hashable | None:
        return self.kernels.get(op.index)

    def seconds(self, op: Op, candidates: Candidates) -> FloatArray:
        """float64[num_candidates]: of one run."""
        return np.full(len(candidates), self.kernels[op.index] * self.launch_seconds)
