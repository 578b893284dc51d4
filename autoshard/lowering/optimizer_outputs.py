"""Optimizer outputs that a plan writes to VMEM, and those that spill to HBM."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autoshard.candidates.candidate import Candidate
from autoshard.encoding.encode import Encoder
from autoshard.encoding.encoded import Decoded, Encoded
from autoshard.encoding.picoseconds import PICOSECONDS
from autoshard.graph.program import Op
from solvers import FORBIDDEN

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class OptimizerOutputs:
    """New states that updates write, all of which stay in VMEM to the program's end if they fit.

    Args:
        hbm_spill_fraction: Of the bytes written, those beyond the capacity of VMEM.
    """

    encoder: Encoder
    decoded: Decoded
    hbm_spill_fraction: float

    @classmethod
    def of(cls, encoder: Encoder, decoded: Decoded) -> OptimizerOutputs:
        """Under a plan."""
        room, parts = encoder.room.vmem.capacity, encoder.costing.parts
        local = sum(
            encoder.graph.values[value].num_bytes // parts.num_pieces(decoded.layouts[value])
            for value in encoder.facts.optimizer_outputs
        )
        return cls(encoder, decoded, hbm_spill_fraction(local, room))

    def more_seconds(self, op: Op) -> float:
        """Seconds that an op takes beside those that it is priced at in the problem."""
        more = self.hbm_spill_fraction - self.encoder.facts.always_spills
        if not more or op.index not in self.encoder.buffers.updates:
            return 0.0
        candidate = self.decoded.candidates.get(op.index)
        if candidate is None:
            return 0.0
        return more * float(self._seconds(op, (candidate,))[0])

    def costs_in_memory(self, encoded: Encoded) -> tuple[IntArray, ...]:
        """Node costs of the problem, if all new states are written to HBM."""
        costs = list(encoded.problem.node_costs)
        more = 1.0 - self.encoder.facts.always_spills
        for op_index in self.encoder.buffers.updates & encoded.node_by_op.keys():
            node = encoded.node_by_op[op_index]
            seconds = self._seconds(encoded.graph.ops[op_index], encoded.candidates[node])
            added = np.rint(more * seconds * PICOSECONDS).astype(np.int64)
            costs[node] = np.minimum(costs[node] + added, FORBIDDEN)
        return tuple(costs)

    def _seconds(self, op: Op, candidates: tuple[Candidate, ...]) -> FloatArray:
        return self.encoder.facts.output_seconds(op, candidates)


def hbm_spill_fraction(local_bytes: float, room: int) -> float:
    """Share of so many bytes of new states that a device writes to HBM."""
    return max(0.0, 1.0 - room / local_bytes) if local_bytes else 0.0
