"""What the objective takes off reshards and sums that run beside computing.

Without it the all-gather of a weight that could be fetched long before it is read costs as much as
an all-reduce that everything waits for. What a collective hides is estimated op by op before
anything is chosen, so that costs stay costs of single choices and of pairs of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from autoshard.candidates.candidate import Candidate
from autoshard.costing.convert_motion import ReadBits
from autoshard.costing.costing import Costing
from autoshard.costing.reductions import Reductions
from autoshard.encoding.slack import SharedSlack, Wanted, Windows, prefetched_first
from autoshard.graph.op_traits import FUSIBLE
from autoshard.graph.program import Graph, Op, OpKind
from autoshard.reshard import StepKind

FloatArray = npt.NDArray[np.float64]
Key = TypeVar("Key")

LEAST_EXPOSED_SHARE = 0.25
"""Share of a collective that is never hidden: it takes memory bandwidth, and starts late.

It also keeps plans from moving bytes for nothing. Source: house default; with a tenth, the plan of
a training step of two layers of an 8B Llama for 2 x 4 v5e chips takes 1.7 % longer on two lanes.
"""
NUM_LEVELS = 8  # of slack, so that reads alike in all but their place share one array of costs


def exposed_seconds(seconds: FloatArray, slack: float | FloatArray) -> FloatArray:
    """What a collective costs where it may take so long unnoticed."""
    return np.maximum(seconds * LEAST_EXPOSED_SHARE, seconds - slack)


@dataclass(frozen=True, slots=True)
class Hidden:
    """Seconds that one run of a move or of sums may take unnoticed.

    Args:
        reads: By op and operand.
        sums: By op.
    """

    reads: Mapping[tuple[int, int], float] = field(default_factory=dict)
    sums: Mapping[int, float] = field(default_factory=dict)


NOTHING_HIDDEN = Hidden()


def hidden_behind_computing(
    reductions: Reductions,
    candidates: Mapping[int, tuple[Candidate, ...]],
    least_seconds: Mapping[int, float],
    read_bits: ReadBits,
) -> Hidden:
    """Share out the computing of a program among what may run beside it.

    Reads of what is there when a body starts (arguments, slices of stacked ones) are served first,
    then sums, then all other reads.

    Args:
        reductions: Of the program.
        candidates: By op, of the ops that have a choice.
        least_seconds: By op, what one run of it computes under every plan.
        read_bits: How wide each op reads.
    """
    graph = reductions.facts.graph
    windows = Windows(graph)
    slack = SharedSlack(windows, least_seconds)
    demands = _Demands(reductions)
    schedule = reductions.facts.costing.backend.schedule
    fetches = schedule.is_async("all-gather")
    sends = any(schedule.is_async(kind) for kind in ("reduce-scatter", "all-reduce"))
    places: list[tuple[int, int]] = []
    wanted: list[Wanted] = []
    sums: list[tuple[int, Wanted]] = []
    for index in candidates:
        op = graph.ops[index]
        if op.kind is not OpKind.COMPUTE or op.collective is not None:
            continue
        for position in _moved_reads(graph, op, candidates) if fetches else ():
            window = windows.of_read(op, position)
            if window.stop > window.start:
                value = graph.values[op.operands[position]]
                places.append((index, position))
                num_bytes = value.num_bytes * read_bits.to(op, position) // max(value.bits, 1)
                most = demands.of_read(num_bytes, is_prefetch=window.is_prefetch)
                wanted.append(Wanted(window, most))
        if sends:
            most = demands.of_sums(op, candidates[index])
            if most > 0:
                sums.append((index, Wanted(windows.of_sums(op), most)))
    early, late = prefetched_first(wanted)
    reads = dict(_shared(slack, [(places[i], wanted[i]) for i in early]))
    own = dict(_shared(slack, sums))
    reads.update(_shared(slack, [(places[i], wanted[i]) for i in late]))
    return Hidden(reads, own)


def _shared(
    slack: SharedSlack, wanted: Sequence[tuple[Key, Wanted]]
) -> Iterator[tuple[Key, float]]:
    """What each gets, in whole levels of what it wants; those that get less are left out."""
    given = slack.share_out([one for _, one in wanted])
    for (key, one), seconds in zip(wanted, given, strict=True):
        level = int(NUM_LEVELS * seconds / one.seconds * (1 + 1e-9)) if one.seconds > 0 else 0
        if level:
            yield key, one.seconds * level / NUM_LEVELS


def _moved_reads(
    graph: Graph, op: Op, candidates: Mapping[int, tuple[Candidate, ...]]
) -> Iterator[int]:
    """Operands of an op that a plan may move; none of ops that run whenever they are wanted."""
    if op.op_class in FUSIBLE:
        return
    for position, value in enumerate(op.operands):
        is_first = value not in op.operands[:position]
        found = graph.values[value]
        if is_first and found.shape and found.op in candidates:
            yield position


@dataclass(slots=True)
class _Demands:
    """Seconds that collectives may take at most."""

    reductions: Reductions
    _known: dict[Hashable, float] = field(default_factory=dict)

    def of_read(self, num_bytes: int, *, is_prefetch: bool) -> float:
        """To fetch a weight whole from all devices, another value along the longest axis only."""
        key = (num_bytes, is_prefetch)
        if key not in self._known:
            parts = tuple(range(len(self.costing.parts.axes)))
            if parts and not is_prefetch:
                longest = max(parts, key=lambda part: self.costing.parts.sizes[part])
                parts = (longest,)
            pieces = self.costing.parts.mesh.num_devices / self.costing.parts.num_shards(parts)
            amount = np.array([num_bytes / pieces])
            seconds = self.costing.step_seconds(StepKind.ALL_GATHER, parts, amount)
            self._known[key] = float(seconds[0]) if parts else 0.0
        return self._known[key]

    @property
    def costing(self) -> Costing:
        return self.reductions.facts.costing

    def of_sums(self, op: Op, candidates: tuple[Candidate, ...]) -> float:
        graph = self.reductions.facts.graph
        if op.rule is None or not op.rule.reduction:
            return 0.0
        key = (id(candidates), sum(graph.values[value].num_bytes for value in op.results))
        if key not in self._known:
            seconds = self.reductions.seconds(op, candidates)
            self._known[key] = float(
                np.max(seconds[_run_beside(self.costing, candidates)], initial=0.0)
            )
        return self._known[key]


def _run_beside(costing: Costing, candidates: Sequence[Candidate]) -> npt.NDArray[np.bool_]:
    """bool[num_candidates]: whether all sums of a candidate may run beside computing."""
    schedule = costing.backend.schedule
    scatters, reduces = (schedule.is_async(kind) for kind in ("reduce-scatter", "all-reduce"))
    return np.array(
        [
            (scatters or not c.scattered) and (reduces or not c.reduced) and c.runs_per_sum == 1
            for c in candidates
        ]
    )


def hidden_sums(
    reductions: Reductions, op: Op, candidates: tuple[Candidate, ...], slack: float
) -> FloatArray:
    """float64[num_candidates]: seconds off one run of an op for sums that run beside computing."""
    sums = reductions.seconds(op, candidates)
    hidden = sums - exposed_seconds(sums, slack)
    return np.where(_run_beside(reductions.facts.costing, candidates), hidden, 0.0)


def hidden_in_products(
    graph: Graph, costing: Costing, op: Op, candidates: tuple[Candidate, ...]
) -> FloatArray:
    """float64[num_candidates]: seconds off one run of an op for pieces that go round meanwhile.

    Of `n` steps all but one pass pieces on, so with `c` seconds of computing and `m` of messages in
    each, at least `c + (n - 1) max(c, m)` go by. Sums that go round hide nothing where the compiler
    makes such loops of scattered sums by itself: those are priced as if it did not.
    """
    if not costing.backend.schedule.is_async("collective-permute"):
        return np.zeros(len(candidates))
    makes_loops = costing.backend.collectives.windows_reduce_scatters
    steps = np.ones(len(candidates))
    for place, one in enumerate(candidates):
        streamed = one.streamed
        if streamed is not None and streamed.rings and not (makes_loops and 0 in streamed.moved):
            steps[place] = streamed.num_steps
    chunks = costing.chunk_seconds(graph, op, candidates)
    exposed = exposed_seconds(chunks.passing, chunks.compute / steps)
    return (steps - 1.0) * (chunks.passing - exposed)
