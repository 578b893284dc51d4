"""Seconds in which images are copied: to run space-to-batch and back, and to put halos around."""

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
    """Copies of images whose rows are cut into pieces, or that are cut along space.

    The piece of a device and its halos are written to one buffer, which takes the time of a copy:
    on a v5e 0.62 M of estimated cycles for 67 MB of bfloat16, where a copy takes 0.47 M (libtpu
    0.0.52; convolutions of stride 1 and 2, and a pool).
    """

    facts: ProgramFacts
    is_sent: ClassVar[bool] = False

    def key(self, op: Op) -> Hashable | None:
        return op.windows or (op.op_class is OpClass.CONVOLUTION or None)

    def seconds(self, op: Op, candidates: Candidates) -> FloatArray:
        """float64[num_candidates]: of one run."""
        costing, graph = self.facts.costing, self.facts.graph
        image = graph.values[op.operands[0]]
        copied = costing.images_copied(graph, op, candidates)
        bits = costing.backend.layout.operand_bits(image.dtype, image.bits)
        padded = [costing.padded_bytes(graph, op, candidate) for candidate in candidates]
        num_bytes = 2.0 * (copied * bits / 8 + np.array(padded))
        return np.where(num_bytes > 0, costing.copy_seconds(num_bytes), 0.0)
