"""Sums over devices whose pieces are cut further by what reads them.

A compiler makes one cut of two, and then takes the sum whole before it. An op is priced as if its
sums were scattered; where all its readers take smaller pieces, an edge to them charges the rest.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from autoshard.candidates.candidate import Candidate
from autoshard.encoding.shared_reads import SharedRead
from autoshard.graph.program import Graph
from autoshard.layouts import Layout

Candidates = tuple[Candidate, ...]
Read = tuple[int, int]  # op index, operand position


@dataclass(frozen=True, slots=True)
class CutSums:
    """The ops of a program whose result is read in one sharding only, and may be scattered.

    Args:
        reads: By such an op, the first read of its result.
    """

    reads: Mapping[int, Read] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        graph: Graph,
        candidates: Mapping[int, Candidates],
        shared: Sequence[SharedRead],
        elsewhere: Container[int],
    ) -> CutSums:
        """Those of a program.

        Args:
            graph: The program.
            candidates: By op with a choice.
            shared: Values that several ops read in one sharding.
            elsewhere: Ops whose sums may be taken after a loop or with those of others.
        """
        together = {read.value: read for read in shared}
        scatters: dict[int, bool] = {}  # by the identity of candidates
        found = {}
        for index, offered in candidates.items():
            op = graph.ops[index]
            if len(op.results) != 1 or index in elsewhere:
                continue
            if id(offered) not in scatters:
                scatters[id(offered)] = any(map(_is_scattered, offered))
            reads = list(_reads(graph, op.results[0])) if scatters[id(offered)] else []
            if not reads:
                continue
            known = together.get(op.results[0])
            readers = {reader for reader, _ in reads}
            is_one = len(readers) == 1 if known is None else set(known.reads) == set(reads)
            if is_one and readers <= candidates.keys():
                found[index] = reads[0] if known is None else known.reads[0]
        return cls(found)

    @staticmethod
    def whole(candidates: Candidates) -> Candidates:
        """The same candidates, taking whole the sums that they would scatter."""
        return tuple(replace(c, is_cut_later=_is_scattered(c)) for c in candidates)

    def as_run(
        self, chosen: Mapping[int, Candidate], shared: Mapping[Read, Layout]
    ) -> dict[int, Candidate]:
        """Chosen candidates by op, with sums taken whole where they are cut further.

        Args:
            chosen: By op.
            shared: The sharding in which a value is brought to all its readers, by read.
        """
        found = dict(chosen)
        for index, read in self.reads.items():
            one, (reader, position) = chosen[index], read
            wanted = shared.get(read, chosen[reader].operands[position])
            if _is_scattered(one) and _cuts_further(one.results[0], wanted):
                (found[index],) = self.whole((one,))
        return found


def _cuts_further(made: Layout, goal: Layout) -> bool:
    """Whether some dimension is cut further than it was made, and none otherwise."""
    pairs = zip(goal, made, strict=True)
    return made != goal and all(after[: len(before)] == before for after, before in pairs)


def _is_scattered(candidate: Candidate) -> bool:
    """Whether its sum may end in a reduce-scatter, with no other sum after that."""
    is_all = bool(candidate.scattered) and not candidate.reduced
    return is_all and candidate.streamed is None


def _reads(graph: Graph, value: int) -> Iterator[Read]:
    """The reads of a value, in program order."""
    for index in sorted(set(graph.consumers[value])):
        operands = graph.ops[index].operands
        yield from ((index, place) for place, one in enumerate(operands) if one == value)
