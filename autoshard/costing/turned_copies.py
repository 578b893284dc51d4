"""Seconds of copies to the dimension order in which batched matmuls read and write."""

from __future__ import annotations

from collections.abc import Hashable
from math import prod
from typing import ClassVar

import numpy as np

from autoshard.costing.cost_term import Candidates, FloatArray
from autoshard.costing.program_facts import ProgramFacts
from autoshard.graph.program import Op


class TurnedCopies:
    """Copies that exchange the last two dimensions of a tensor; those in VMEM take no time."""

    is_sent: ClassVar[bool] = False

    def __init__(self, facts: ProgramFacts) -> None:
        self.facts = facts
        self.values = facts.buffers.turned_rows

    def key(self, op: Op) -> Hashable | None:
        value = self.values.get(op.index)
        return None if value is None else self.facts.vmem.short_lived[value]

    def seconds(self, op: Op, candidates: Candidates) -> FloatArray:
        """float64[num_candidates]: of one run."""
        costing, value = self.facts.costing, self.facts.graph.values[self.values[op.index]]
        shards = costing.arrays(candidates).result_shards[0]
        compute = costing.model.hardware.compute
        cycles = costing.backend.layout.turn_cycles * prod(value.shape) / shards / 1024
        seconds = compute.kernel_launch_seconds + cycles / (compute.clock_hertz or np.inf)
        vmem = self.facts.vmem
        is_held = vmem.short_lived[value.index] & (value.num_bytes / shards <= vmem.capacity)
        return np.where(is_held, 0.0, seconds)
