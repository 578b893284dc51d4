"""What each candidate of an op costs by itself."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from autoshard.candidates.candidate import Candidate
from autoshard.costing.costing import Costing
from autoshard.encoding.hidden_communication import Hidden, hidden_in_products, hidden_sums
from autoshard.encoding.picoseconds import picoseconds
from autoshard.graph.buffers import Buffers
from autoshard.graph.program import Graph, Op
from solvers import FORBIDDEN

IntArray = npt.NDArray[np.int64]


@dataclass(slots=True)
class NodeCosts:
    """Prices ops; equal ones (of repeated layers) share one array.

    Args:
        graph: The program.
        buffers: Its storage.
        costing: Prices on this mesh.
        candidates: Of each op, by its index.
    """

    graph: Graph
    buffers: Buffers
    costing: Costing
    candidates: Mapping[int, tuple[Candidate, ...]]
    _alike: dict[int, tuple[Hashable, ...]] = field(default_factory=dict)
    _costs: dict[Hashable, IntArray] = field(default_factory=dict)
    _seconds: dict[Hashable, tuple[Candidate, float, float]] = field(default_factory=dict)

    def of(self, op: Op) -> IntArray:
        """int64[num_candidates]; equal ops (of repeated layers) share one array."""
        key = self.like(op)
        found = self._costs.get(key)
        if found is None:
            candidates = self.candidates[op.index]
            seconds = self.costing.candidate_seconds(self.graph, self.buffers, op, candidates)
            found = picoseconds(seconds * op.repeat)
            self._costs[key] = found
        return found

    def seconds_of(self, op: Op, candidate: Candidate) -> tuple[float, float]:
        """Seconds that one run of an op computes, and that it communicates by itself."""
        key = (id(candidate), *self.like(op))
        known = self._seconds.get(key)
        if known is None:
            costing, one = self.costing, (candidate,)
            total = float(costing.candidate_seconds(self.graph, self.buffers, op, one)[0])
            sent = float(costing.reduction_seconds(self.graph, op, one)[0])
            sent += float(costing.written_seconds(self.graph, op, one)[0])
            if candidate.streamed is not None:
                sent += costing.streamed_seconds(self.graph, op, candidate)[1]
            known = self._seconds[key] = (candidate, total - sent, sent)
        return known[1:]

    def like(self, op: Op) -> tuple[Hashable, ...]:
        """The same for ops whose candidates cost the same."""
        known = self._alike.get(op.index)
        if known is None:
            known = self._alike[op.index] = self._priced_by(op)
        return known

    def _priced_by(self, op: Op) -> tuple[Hashable, ...]:
        """All that the costs of its candidates depend on."""
        values = (*op.operands, *op.results)
        return (
            id(self.candidates[op.index]),
            op.kind,
            op.name,
            op.flops,
            op.repeat,
            op.collective,
            op.declared,
            tuple((self.graph.values[v].shape, self.graph.values[v].dtype) for v in values),
            self.buffers.reads[op.index],
            self.costing.border_bytes(self.graph, op),
            self.costing.sums_in_call(self.graph, op),
            self.costing.rows_of(self.graph, op),
            self.costing.is_in_other_kernel(self.graph, self.buffers, op),
            self.costing.unstacks(self.graph, self.buffers, op),
            self.costing.is_carried_apart(self.graph, self.buffers, op),
            self.costing.slices_turned(self.graph, self.buffers, op),
            self.costing.waiting_as_stacked_seconds(self.graph, self.buffers, op),
            self.costing.waiting_seconds(self.graph, self.buffers, op.results[0])
            if op.results
            else 0.0,
            self.costing.chip_places(self.graph, self.buffers, op),
            self.costing.with_product(self.graph, self.buffers, op),
            tuple(self.buffers.is_stored[v] for v in op.results),
            tuple(v in self.buffers.unless_summed for v in op.results),
            tuple(self.buffers.owner[v] == v for v in op.results),
        )

    def exposed(self, op: Op, costs: IntArray, hidden: Hidden) -> IntArray:
        """The costs of an op without what it sends beside computing: its sums, or its pieces."""
        slack = hidden.sums.get(op.index, 0.0)
        candidates = self.candidates[op.index]
        passes = self.costing.overlaps and candidates[-1].streamed is not None
        if not slack and not passes:
            return costs
        key = ("exposed", id(costs), slack, op.repeat)
        found = self._costs.get(key)
        if found is None:
            off = hidden_sums(self.graph, self.costing, op, candidates, slack)
            if passes:
                off += hidden_in_products(self.graph, self.costing, op, candidates)
            off *= op.repeat
            found = np.where(costs < FORBIDDEN, costs - picoseconds(off), costs)
            self._costs[key] = found
        return found
