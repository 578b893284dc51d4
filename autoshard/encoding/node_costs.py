"""Costs of the candidates of an op by itself: one loop over the cost terms."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from autoshard.candidates.candidate import Candidate
from autoshard.costing.cost_term import (
    Candidates,
    FloatArray,
    OpTerm,
    OpTermKind,
    keys_of,
    sum_of_terms,
)
from autoshard.costing.kernel_time import KernelTime
from autoshard.costing.op_terms import OP_TERMS
from autoshard.costing.program_facts import ProgramFacts
from autoshard.costing.reductions import Reductions
from autoshard.encoding.hidden_communication import Hidden, hidden_in_products, hidden_sums
from autoshard.encoding.picoseconds import picoseconds
from autoshard.graph.host_transfers import in_place_transfers
from autoshard.graph.program import Op
from solvers import FORBIDDEN

IntArray = npt.NDArray[np.int64]


class NodeCosts:
    """Prices ops as sums of cost terms; equal ones (of repeated layers) share one array.

    Args:
        facts: Of the program.
        candidates: Of each op, by its index.
        kinds: The terms.

    Attributes:
        reductions: The term of what ops reduce over devices, whether it is among the terms or not.
        in_place: Transfers to and from host memory that nothing else runs beside.
    """

    def __init__(
        self,
        facts: ProgramFacts,
        candidates: Mapping[int, Candidates],
        kinds: Sequence[OpTermKind] = OP_TERMS,
    ) -> None:
        self.facts, self.candidates = facts, candidates
        self.graph, self.costing = facts.graph, facts.costing
        self.reductions = Reductions(facts)
        self._terms = tuple(kind(facts) for kind in kinds)
        self.in_place = in_place_transfers(self.graph)
        self._keys: dict[int, tuple[Hashable, ...]] = {}
        self._alike: dict[int, int] = {}
        self._classes: dict[tuple[Hashable, ...], int] = {}
        self._costs: dict[Hashable, IntArray] = {}
        self._seconds: dict[Hashable, tuple[Candidate, float, float]] = {}
        kernels = (term for term in self._terms if isinstance(term, KernelTime))
        self._kernels = next(kernels, None) or KernelTime(facts)
        self._more: dict[Hashable, tuple[Candidate, float]] = {}

    def of(self, op: Op) -> IntArray:
        """int64[num_candidates]; equal ops (of repeated layers) share one array."""
        key: Hashable = self.like(op)
        found = self._costs.get(key)
        if found is None:
            found = picoseconds(self.seconds(op, self.candidates[op.index]) * op.repeat)
            self._costs[key] = found
        return found

    def seconds(self, op: Op, candidates: Candidates) -> FloatArray:
        """float64[num_candidates]: of one run of the op, its reductions included.

        Transfers to and from host memory that run beside the body of a loop take none: as far as
        they take longer, its schedule knows.
        """
        if self.graph.is_host_op(op):
            return self._transfer_seconds(op, candidates)
        return sum_of_terms(self._applying(op), op, candidates)

    def _keys_of(self, op: Op) -> tuple[Hashable, ...]:
        """The key of an op under each term, asked for once."""
        if op.index not in self._keys:
            self._keys[op.index] = keys_of(self._terms, op)
        return self._keys[op.index]

    def _applying(self, op: Op) -> Iterator[OpTerm]:
        """The terms that apply to an op."""
        keyed = zip(self._terms, self._keys_of(op), strict=True)
        return (term for term, key in keyed if key is not None)

    def _transfer_seconds(self, op: Op, candidates: Candidates) -> FloatArray:
        """float64[num_candidates]: that nothing runs beside a transfer."""
        host, value = self.costing.model.hardware.host, self.graph.values[op.results[0]]
        if op.index not in self.in_place or host is None:
            return np.zeros(len(candidates))
        pieces = [self.costing.parts.num_pieces(one.results[0]) for one in candidates]
        return value.num_bytes / host.bytes_per_second / np.array(pieces, dtype=np.float64)

    def seconds_of(self, op: Op, candidate: Candidate) -> tuple[float, float]:
        """Seconds that one run of an op computes, and that it communicates by itself."""
        key = (id(candidate), self.like(op))
        known = self._seconds.get(key)
        if known is None and self.graph.is_host_op(op):
            known = self._seconds[key] = (candidate, 0.0, 0.0)
        if known is None:
            terms = tuple(self._applying(op))
            kernels = (term for term in terms if not term.is_sent)
            collectives = (term for term in terms if term.is_sent)
            computed = float(sum_of_terms(kernels, op, (candidate,))[0])
            sent = float(sum_of_terms(collectives, op, (candidate,))[0])
            known = self._seconds[key] = (candidate, computed, sent)
        return known[1:]

    def more_seconds(self, op: Op, candidate: Candidate, one_waits: bool) -> float:
        """Seconds by which a run of a matmul takes longer than `seconds_of` has it.

        Args:
            op: A matmul.
            candidate: Of it.
            one_waits: An operand of it is in VMEM when it runs.
        """
        key = (id(candidate), self.like(op), one_waits)
        known = self._more.get(key)
        if known is None:
            found = self._kernels.more_seconds(op, (candidate,), one_waits)
            known = self._more[key] = (candidate, float(found[0]))
        return known[1]

    def more_where_alike(
        self, op: Op, candidates: Candidates, choice: int, one_waits: bool
    ) -> Iterator[tuple[int, float]]:
        """Choices of a matmul that have an operand in VMEM where one choice has one, or has none.

        Smaller operands wait where that one's does; larger ones do not where it does not.

        Returns:
            Each with the seconds by which a run takes longer than `seconds` has it, if any.
        """
        num_bytes = self._kernels.waiting_bytes(op, candidates)
        least = num_bytes[choice]
        is_alike = num_bytes <= least if one_waits else num_bytes >= least
        more = self._kernels.more_seconds(op, candidates, one_waits)
        yield from ((int(one), float(more[one])) for one in np.flatnonzero(is_alike & (more != 0)))

    def like(self, op: Op) -> int:
        """The same number for ops whose candidates cost the same."""
        known = self._alike.get(op.index)
        if known is not None:
            return known
        other = self.facts.stand_ins[op.index]
        if other != op.index and self.candidates.get(other) is self.candidates[op.index]:
            known = self.like(self.graph.ops[other])
        else:
            key = (
                id(self.candidates[op.index]),
                op.kind,
                op.name,
                op.flops,
                op.repeat,
                op.declared,
                self.graph.is_host_op(op),
                op.index in self.in_place,
                tuple(
                    (self.graph.values[v].shape, self.graph.values[v].dtype)
                    for v in (*op.operands, *op.results)
                ),
                self._keys_of(op),
            )
            known = self._classes.setdefault(key, len(self._classes))
        self._alike[op.index] = known
        return known

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
            off = hidden_sums(self.reductions, op, candidates, slack)
            if passes:
                off += hidden_in_products(self.graph, self.costing, op, candidates)
            off *= op.repeat
            found = np.where(costs < FORBIDDEN, costs - picoseconds(off), costs)
            self._costs[key] = found
        return found
