"""Host memory and link time of stacks of residuals that are offloaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

import numpy as np

from autoshard.encoding.picoseconds import PICOSECONDS
from autoshard.graph.program import Region
from autoshard.planning.host_link import HostLink
from autoshard.planning.residual_problem import HOST, KEEP
from autoshard.planning.residual_program import ResidualProgram
from autoshard.planning.residual_tables import IntArray, ResidualTables, state_column
from autoshard.remat.forward_op import ForwardOp
from solvers import EdgeMemory, MemoryLimit, NodeMemory

_SLICES_ON_DEVICE = 2
"""Of a stack in host memory: one that is computed with, and one on its way."""


class Offloading:
    """Nodes that wait for the links to the host, one for each forward pass, and what they take.

    Args:
        program: The program.
        tables: Tell what is kept.
    """

    def __init__(self, program: ResidualProgram, tables: ResidualTables) -> None:
        self.program, self.tables = program, tables
        self.host = program.encoder.costing.model.hardware.host

    @cached_property
    def passes(self) -> tuple[int, ...]:
        """Forward passes that may offload."""
        return tuple(dict.fromkeys(op.pass_index for op in self.program.ops)) if self.host else ()

    @cached_property
    def links(self) -> tuple[HostLink, ...]:
        """Of each pass."""
        return tuple(map(self._link, self.passes))

    def may_offload(self, position: int, op: ForwardOp) -> bool:
        """True where slices of a stack may leave for the host, and are worth it."""
        sizes = [int(usage.max()) for _, usage in self.tables.kept_bytes[position]]
        return (
            self.host is not None
            and op.pass_index in self.program.loops
            and all(one.is_array for one in op.results)
            and sum(sizes) > self.program.encoder.room.negligible_bytes
        )

    def _link(self, number: int) -> HostLink:
        """Between a device and its host, in one pass: what it takes while bodies compute."""
        assert self.host is not None
        offered = (
            int(usage.max())
            for position, op in enumerate(self.program.ops)
            if op.pass_index == number and self.may_offload(position, op)
            for _, usage in self.tables.kept_bytes[position]
        )
        seconds = [self._seconds_in(loop) for loop in self.program.loops.get(number, ())]
        return HostLink(self.host.bytes_per_second, tuple(seconds), sum(offered))

    def _seconds_in(self, loop: Region) -> float:
        """Of computing in all runs of a loop as the lean plan does, without what it computes again.

        The loop of a program that keeps all would take longer, and hide longer transfers.
        """
        lean = self.program.lean
        node_of, costs = lean.encoded.node_by_op, lean.encoded.problem.node_costs
        nodes = {
            node_of[other]
            for index, other in self.program.lean_ops.items()
            if loop.start <= index < loop.stop and other in node_of
        }
        return sum(int(costs[node][lean.solution.choices[node]]) for node in nodes) / PICOSECONDS

    def on_device(self, usage: IntArray, position: int) -> IntArray:
        """Bytes on the device by state: what is kept, and slices of what is on the host."""
        table = state_column(usage, KEEP)
        length = self.program.ops[position].stack_length
        if length is not None:
            table[:, HOST] = np.minimum(usage, usage * _SLICES_ON_DEVICE // max(length, 1))
        return table

    @property
    def _host_time(self) -> int:
        """When bytes in host memory are counted, and after it bytes on the link, by pass."""
        return len(self.program.graph.ops) + 1

    def sent(self, place: Mapping[tuple[int, int], int]) -> Iterator[EdgeMemory]:
        """Bytes of offloaded residuals, in host memory and on the link."""
        for position, op in enumerate(self.program.ops):
            if not self.may_offload(position, op):
                continue
            link = self._host_time + 1 + self.passes.index(op.pass_index)
            for node, usage in self.tables.kept_bytes[position]:
                for time in (self._host_time, link):
                    sent = state_column(usage, HOST)
                    yield EdgeMemory(place[node, position], time, time + 1, sent)

    def bought(self) -> Iterator[NodeMemory]:
        """Bytes that pass the links only at the price of waiting longer."""
        for place, link in enumerate(self.links):
            time = self._host_time + 1 + place
            yield NodeMemory(
                self.program.encoded.problem.num_nodes + place, time, time + 1, link.left_bytes
            )

    def host_limits(self) -> Iterator[MemoryLimit]:
        """The most bytes in host memory, and on the link of each pass."""
        if self.host is not None:
            most = (self.host.capacity_bytes, *(link.most_bytes for link in self.links))
            for time, limit in enumerate(most, start=self._host_time):
                yield MemoryLimit(time, time + 1, limit)
