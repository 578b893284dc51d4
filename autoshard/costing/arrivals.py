"""A preference for small pieces of arguments that may be new in every step, such as a batch."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from autoshard.costing.cost_term import Candidates, FloatArray
from autoshard.costing.program_facts import ProgramFacts
from autoshard.graph.program import Op, OpKind

SHARE = 0.01
"""Of the time that device memory takes to write the argument."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Of plans that are equal otherwise, the one that puts the smaller pieces on devices.

    A step takes nothing for it, and nobody knows which arguments are new (a batch) and which stay
    (parameters that answer requests).
    """

    facts: ProgramFacts
    is_sent: ClassVar[bool] = False

    def key(self, op: Op) -> Hashable | None:
        is_new = op.kind is OpKind.ARGUMENT and op.index not in self.facts.graph.donated
        return is_new or None

    def seconds(self, op: Op, candidates: Candidates) -> FloatArray:
        """float64[num_candidates]: a hundredth of writing it, to decide between equal plans."""
        costing = self.facts.costing
        num_bytes = self.facts.graph.values[op.results[0]].num_bytes
        local = num_bytes / costing.arrays(candidates).result_shards[0]
        return np.asarray(SHARE * local / costing.model.hardware.memory.bytes_per_second)
