"""Sums over devices that ops end in, and what neighbours exchange for convolutions and pools."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

import numpy as np

from autoshard.costing.cost_term import Candidates, FloatArray
from autoshard.costing.program_facts import ProgramFacts
from autoshard.graph.program import Op, OpKind
from autoshard.identity_cache import IdentityCache
from autoshard.layouts import Parts

_Kinds: TypeAlias = tuple[float, tuple[tuple[str, Parts], ...]]
"""Runs that a sum serves; kinds and parts."""
_Groups: TypeAlias = dict[_Kinds, list[tuple[int, tuple[float, ...]]]]
"""By what they end in, places of candidates, and the share of the tensors in each of their sums."""


@dataclass(frozen=True, slots=True)
class Reductions:
    """All-reduces, reduce-scatters and halos of the candidates of an op."""

    facts: ProgramFacts
    is_sent: ClassVar[bool] = True
    _known: IdentityCache[_Groups] = field(default_factory=IdentityCache)

    def key(self, op: Op) -> Hashable | None:
        if op.kind is not OpKind.COMPUTE or not op.results:
            return None
        order = self.facts.costing.made_order(self.facts.graph, op)
        return self.in_call(op), order, op.windows

    def in_call(self, op: Op) -> tuple[int, int]:
        """Sums that share the call of an all-reduce of the op's result, that one included.

        In the region of the op, and after the loop that adds its results up.
        """
        calls = self.facts.calls
        return calls.in_body.get(op.index, 1), calls.after_loop.get(op.index, 1)

    def seconds(self, op: Op, candidates: Candidates) -> FloatArray:
        """float64[num_candidates]: of each run of the op."""
        costing, graph = self.facts.costing, self.facts.graph
        seconds = self._halo_seconds(op, candidates)
        total = sum(costing.sent_bytes(graph.values[v]) for v in op.results)
        in_body, after_loop = self.in_call(op)
        for (runs, kinds), found in self._groups(op, candidates).items():
            spent = np.zeros(len(found))
            joined = after_loop if runs > 1 else in_body
            for place, (kind, parts) in enumerate(kinds):
                num_bytes = np.array([total * shares[place] for _, shares in found])
                spent += costing.sum_seconds(kind, num_bytes, costing.axis_parts(parts), joined)
            seconds[[index for index, _ in found]] += spent / runs
        return seconds

    def _groups(self, op: Op, candidates: Candidates) -> _Groups:
        """Candidates that end in sums of the same kinds; those of equal results are found once."""
        if not op.results:
            return {}
        costing, graph = self.facts.costing, self.facts.graph
        made = graph.values[op.results[0]]

        def found() -> _Groups:
            groups: _Groups = {}
            for index, candidate in enumerate(candidates):
                if candidate.streamed is None and (candidate.reduced or candidate.scattered):
                    sums = costing.sums_of(graph, op, candidate)
                    key = candidate.runs_per_sum, tuple((one.kind, one.parts) for one in sums)
                    shares = tuple(one.num_gathered / one.pieces for one in sums)
                    groups.setdefault(key, []).append((index, shares))
            return groups

        key = (op.op_class, made.shape, made.bits, costing.made_order(graph, op))
        return self._known.get(found, candidates, key=key)

    def _halo_seconds(self, op: Op, candidates: Candidates) -> FloatArray:
        costing, graph = self.facts.costing, self.facts.graph
        seconds = np.zeros(len(candidates))
        if not op.windows:
            return seconds
        bits = costing.halo_bits(graph, op)
        for index, candidate in enumerate(candidates):
            for halo in costing.halos(graph, op, candidate):
                num_bytes = np.asarray(halo.num_elements * bits / 8)
                axes = costing.axis_parts(halo.parts)
                seconds[index] += float(costing.model.permute_seconds(num_bytes, axes))
        return seconds
