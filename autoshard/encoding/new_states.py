"""New states that a plan's updates write to memory on the chip, and those past its room."""

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
class NewStates:
    """What updates write, all of which is on the chip until the program ends, if it has room.

    Args:
        encoder: Of the problem.
        decoded: The plan.
        share_off: Of what is written, the share that has no room there.
    """

    encoder: Encoder
    decoded: Decoded
    share_off: float

    @classmethod
    def of(cls, encoder: Encoder, decoded: Decoded) -> NewStates:
        """Under a plan."""
        room, parts = encoder.room.on_chip.room, encoder.costing.parts
        local = sum(
            encoder.graph.values[value].num_bytes // parts.num_pieces(decoded.layouts[value])
            for value in encoder.costing.new_states(encoder.graph, encoder.buffers)
        )
        return cls(encoder, decoded, share_off(local, room))

    def more_seconds(self, op: Op) -> float:
        """Seconds that an op takes beside those that it is priced at in the problem."""
        costing = self.encoder.costing
        more = self.share_off - costing.states_off
        candidate = self.decoded.candidates.get(op.index)
        if not more or candidate is None or op.index not in self.encoder.buffers.updates:
            return 0.0
        return more * float(self._seconds(op, (candidate,))[0])

    def costs_in_memory(self, encoded: Encoded) -> tuple[IntArray, ...]:
        """Node costs of the problem, if all new states are written to device memory."""
        costs = list(encoded.problem.node_costs)
        more = 1.0 - self.encoder.costing.states_off
        for op_index in self.encoder.buffers.updates & encoded.node_by_op.keys():
            node = encoded.node_by_op[op_index]
            seconds = self._seconds(encoded.graph.ops[op_index], encoded.candidates[node])
            added = np.rint(more * seconds * PICOSECONDS).astype(np.int64)
            costs[node] = np.minimum(costs[node] + added, FORBIDDEN)
        return tuple(costs)

    def _seconds(self, op: Op, candidates: tuple[Candidate, ...]) -> FloatArray:
        encoder = self.encoder
        return encoder.costing.state_seconds(encoder.graph, encoder.buffers, op, candidates)


def share_off(local_bytes: float, room: int) -> float:
    """Share of new states that a device writes to its memory, of so many bytes."""
    return max(0.0, 1.0 - room / local_bytes) if local_bytes else 0.0
