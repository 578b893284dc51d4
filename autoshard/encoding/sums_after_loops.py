"""Sums over devices that a backend takes out of the loop which adds them up.

The op is priced with a sum that serves all runs of the loop; where the addition wants another
layout than the op ends in, the sum stays inside, and an edge between the two charges the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from autoshard.backends import CollectivePolicy
from autoshard.candidates.candidate import Candidate
from autoshard.graph.loop_sums import LoopSum, loop_sums
from autoshard.graph.program import Graph, Op

Candidates = tuple[Candidate, ...]


@dataclass(frozen=True, slots=True)
class SumsAfterLoops:
    """The sums of a program that can leave their loops.

    Args:
        by_op: By the op whose partial results are summed.
    """

    by_op: Mapping[int, LoopSum] = field(default_factory=dict)
    _offered: dict[tuple[int, float], tuple[Candidates, Candidates]] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: Graph, collectives: CollectivePolicy) -> SumsAfterLoops:
        """Those of a program, where the backend moves them."""
        found = loop_sums(graph) if collectives.loop_all_reduce_motion else ()
        return cls({one.op: one for one in found})

    def __iter__(self) -> Iterator[LoopSum]:
        return iter(self.by_op.values())

    def offered(self, op: Op, candidates: Candidates) -> Candidates:
        """Candidates of an op, those that end in all-reduces with one of them for all runs."""
        one = self.by_op.get(op.index)
        if one is None:
            return candidates
        key = (id(candidates), one.runs)
        if key not in self._offered:
            late = tuple(
                replace(c, runs_per_sum=one.runs) if _only_reduces(c) else c for c in candidates
            )
            self._offered[key] = (candidates, late)
        return self._offered[key][1]

    @staticmethod
    def in_loop(candidates: Candidates) -> Candidates:
        """The same candidates with sums in every run."""
        return tuple(replace(c, runs_per_sum=1.0) for c in candidates)

    @staticmethod
    def leaves(one: LoopSum, made: Candidates, added: Candidates) -> npt.NDArray[np.bool_]:
        """bool[num_made, num_added]: whether the sum leaves the loop, or there is none."""
        wanted = [c.operands[one.position] for c in added]
        return np.array(
            [
                [
                    c.runs_per_sum == 1 or tuple(c.results[0][dim] for dim in one.order) == layout
                    for layout in wanted
                ]
                for c in made
            ]
        )

    def as_run(self, chosen: Mapping[int, Candidate]) -> dict[int, Candidate]:
        """Chosen candidates by op, with sums in every run where they stay in the loop."""
        found = dict(chosen)
        for one in self:
            if one.op in chosen and one.add in chosen:
                pair = (chosen[one.op],), (chosen[one.add],)
                if not self.leaves(one, *pair)[0, 0]:
                    found[one.op] = self.in_loop(pair[0])[0]
        return found


def _only_reduces(candidate: Candidate) -> bool:
    is_streamed = candidate.streamed is not None
    return bool(candidate.reduced) and not candidate.scattered and not is_streamed
