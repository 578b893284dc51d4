"""Operands of matmuls that wait in VMEM under a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from autoshard.encoding.encoded import Decoded
from autoshard.graph.buffers import Buffers
from autoshard.graph.program import Graph, Op
from autoshard.lowering.memory_space_assignment import Read


@dataclass(frozen=True, slots=True)
class WaitingOperands:
    """What matmuls find in VMEM when they run.

    Args:
        graph: The program.
        buffers: Of its values, with the times at which ops run.
        decoded: The plan.
        reads: By value, and whether it is a resharded copy of it, reads that find it in VMEM.
        behind: As of `Vmem`.
    """

    graph: Graph
    buffers: Buffers
    decoded: Decoded
    reads: Mapping[tuple[int, bool], Sequence[Read]]
    behind: Sequence[Set[int]]

    def any_for(self, op: Op) -> bool:
        """True where one of a matmul's operands waits for it, with all that it is computed from."""
        time = self.buffers.time_of(op.index)
        return any(self._waits(op, position, time) for position in range(2))

    def _waits(self, op: Op, position: int, time: int) -> bool:
        value = op.operands[position]
        if self.decoded.candidates[op.index].operands[position] != self.decoded.layouts[value]:
            return self._is_there((value, True), time)
        least = self.graph.values[value].num_bytes / 2  # vectors along its rows count as nothing
        sources = [
            source for source in self.behind[value] if self.graph.values[source].num_bytes >= least
        ]
        return all(self._is_there((source, False), time) for source in sources)

    def _is_there(self, buffer: tuple[int, bool], time: int) -> bool:
        return any(read.begin <= time <= read.end for read in self.reads.get(buffer, ()))
