"""Sums over devices of results that are added to one another: a backend may take them as one.

The second op is priced without its sum; where the two are not summed alike, an edge between them
charges it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from autoshard.backends import CollectivePolicy
from autoshard.candidates.candidate import Candidate
from autoshard.graph.added_sums import AddedSums, Summand, added_sums
from autoshard.graph.program import Graph, Op

Candidates = tuple[Candidate, ...]


@dataclass(frozen=True, slots=True)
class JoinedSums:
    """The sums of a program that can be taken together.

    Args:
        by_second: By the op whose sum is taken with that of an earlier one.
    """

    by_second: Mapping[int, AddedSums] = field(default_factory=dict)
    _offered: dict[int, tuple[Candidates, Candidates]] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: Graph, collectives: CollectivePolicy) -> JoinedSums:
        """Those of a program, where the backend joins them."""
        found = added_sums(graph) if collectives.reassociates_all_reduces else ()
        return cls({one.second.op: one for one in found})

    def __iter__(self) -> Iterator[AddedSums]:
        return iter(self.by_second.values())

    def offered(self, op: Op, candidates: Candidates) -> Candidates:
        """Candidates of an op, without the sums that may be taken with another's."""
        if op.index not in self.by_second:
            return candidates
        key = id(candidates)
        if key not in self._offered:
            joined = tuple(replace(c, is_sum_joined=_has_sums(c)) for c in candidates)
            self._offered[key] = (candidates, joined)
        return self._offered[key][1]

    @staticmethod
    def apart(candidates: Candidates) -> Candidates:
        """The same candidates with sums of their own."""
        return tuple(replace(c, is_sum_joined=False) for c in candidates)

    @staticmethod
    def are_joined(
        one: AddedSums, firsts: Candidates, seconds: Candidates
    ) -> npt.NDArray[np.bool_]:
        """bool[num_firsts, num_seconds]: whether both are summed alike, or the second is not."""
        ways: dict[tuple[object, ...], int] = {}
        before, after = (
            np.array([ways.setdefault(_way(summand, c), len(ways)) for c in candidates])
            for summand, candidates in ((one.first, firsts), (one.second, seconds))
        )
        has_sums = np.array([_has_sums(c) for c in seconds])
        joined: npt.NDArray[np.bool_] = (before[:, None] == after) | ~has_sums
        return joined

    @staticmethod
    def are_whole(adds: Candidates, seconds: Candidates) -> npt.NDArray[np.bool_]:
        """bool[num_adds, num_seconds]: whether a scatter is made into an addend, or no sum is."""
        whole = np.array([_adds_whole(c) for c in adds])
        joined: npt.NDArray[np.bool_] = whole[:, None] | ~np.array([_has_sums(c) for c in seconds])
        return joined

    def as_run(self, chosen: Mapping[int, Candidate]) -> dict[int, Candidate]:
        """Chosen candidates by op, with sums of their own where they are not joined."""
        found = dict(chosen)
        for one in self:
            first, second = chosen.get(one.first.op), chosen.get(one.second.op)
            if second is not None and second.is_sum_joined:
                is_joined = first is not None and self.are_joined(one, (first,), (second,))[0, 0]
                if not (is_joined and _adds_whole(chosen.get(one.first.addend_at))):
                    (found[one.second.op],) = self.apart((second,))
        return found


def _has_sums(candidate: Candidate) -> bool:
    """True where it ends in sums of its own, in every run."""
    has_sums = bool(candidate.reduced or candidate.scattered)
    return has_sums and candidate.streamed is None and candidate.runs_per_sum == 1


def _adds_whole(add: Candidate | None) -> bool:
    """True where a scatter can be made into what is added to it: not, where pieces are added."""
    return add is None or not any(map(any, add.operands))


def _way(summand: Summand, candidate: Candidate) -> tuple[object, ...]:
    """How a result is summed: alike for two results that are summed as one.

    What a scatter makes in pieces is held where it is made. So it is not scattered into what is
    added to it, and the sum of both together is none over devices.
    """
    (layout,) = candidate.results
    is_held = summand.addend_at >= 0 and any(layout)
    if not _has_sums(candidate) or is_held:
        return (summand.op,)
    added = tuple(layout[dim] for dim in summand.order)
    return frozenset(candidate.reduced), frozenset(candidate.scattered), added
