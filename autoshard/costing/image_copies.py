"""Seconds in which convolutions of few images copy them to run space-to-batch, and back."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from autoshard.costing.cost_term import Candidates, FloatArray
from autoshard.costing.program_facts import ProgramFacts
from autoshard.graph.program import Op, OpClass


@dataclass(frozen=True, slots=True)
class ImageCopies:
    """Copies of images whose rows are cut into pieces."""

    facts: ProgramFacts
    is_sent: ClassVar[bool] = False

    def key(self, op: Op) -> Hashable | None:
        return op.op_class is OpClass.CONVOLUTION or None

    def seconds(self, op: Op, candidates: Candidates) -> FloatArray:
        """float64[num_candidates]: of one run."""
        costing, image = self.facts.costing, self.facts.graph.values[op.operands[0]]
        copied = costing.images_copied(self.facts.graph, op, candidates)
        bits = costing.backend.layout.operand_bits(image.dtype, image.bits)
        return np.where(copied > 0, costing.copy_seconds(2.0 * copied * bits / 8), 0.0)
