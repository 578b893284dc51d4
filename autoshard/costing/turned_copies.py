"""Seconds of copies to the dimension order in which batched matmuls read and write."""

from __future__ import annotations

from collections.abc import Hashable
from math import prod
from typing import ClassVar

import numpy as np

from autoshard.candidates.candidate import Candidate
from autoshard.costing.cost_term import Candidates, FloatArray
from autoshard.costing.program_facts import ProgramFacts
from autoshard.graph.program import Op


class TurnedCopies:
    """Copies that exchange the last two dimensions of a tensor; those in VMEM take no time.

    They are made of one example on a device, and of several that have fewer rows than columns. Of
    others, the matmul writes or reads the order of attention itself.

    Source: queries, keys and values with a bias or through a GELU, and their gradients, by libtpu
        0.0.52 for a v5p: 1 to 64 examples of 128 to 4096 rows and 512 to 2048 columns; fewer of
        them for a v4, a v5e and a v6e, which copies nothing of one example.
    """

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
        clock = costing.model.hardware.compute.clock_hertz or np.inf
        cycles = costing.backend.layout.turn_cycles * prod(value.shape) / shards / 1024
        seconds = costing.launch_seconds + cycles / clock
        vmem = self.facts.vmem
        is_held = vmem.short_lived[value.index] & (value.num_bytes / shards <= vmem.capacity)
        is_copied = [self._is_copied(op, candidate) for candidate in candidates]
        return np.where(is_held | ~np.array(is_copied), 0.0, seconds)

    def _is_copied(self, op: Op, candidate: Candidate) -> bool:
        ends = (op.operands[0], candidate.operands[0]), (op.results[0], candidate.results[0])
        values, parts = self.facts.graph.values, self.facts.costing.parts
        shapes = (parts.local_shape(layout, values[value].shape) for value, layout in ends)
        *examples, num_rows, num_columns = min(shapes, key=len)
        return prod(examples) == 1 or num_rows < num_columns
