"""Equal layers in a sequence of equations: runs in which they repeat, and which copy is of which.

Layers written one after the other make several runs: forward, backward, in the other order, and one
through each stage of the optimizer. Copy 3 of one run goes with copy 3, or the last but 3, of
another: reads of values and shared arguments tell.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

KEPT = 1
"""Layers that stay at each end. A choice: a border differs from the layer beside it."""
_LEAST_REPEATS = 2 * KEPT + 2
_WORTH_LEAVING_OUT = 0.5
"""Of all equations, at least. A choice: else the smaller program is as long to look at."""
_MOST_PERIODS = 256  # that are tried, those seen most often


@dataclass(frozen=True, slots=True)
class Run:
    """A stretch of equations in which each is like the one a period later.

    Args:
        start: The first equation.
        stop: Behind the last one.
        period: Equations of a layer.
        left_out: Those of the layers that others stand for.
    """

    start: int
    stop: int
    period: int
    left_out: range = range(0)

    def kept_copy(self, equation: int) -> int:
        """The last equation before those left out that one of them is a copy of."""
        first = self.left_out.start
        return first - self.period + (equation - first) % self.period


def equal_layers(colours: Sequence[int], reads: Sequence[Sequence[int]]) -> list[Run]:
    """Runs of layers of which all but a few at each end are left out; none where that is little.

    Args:
        colours: By equation; equal ones have one.
        reads: By equation, the earlier ones that it reads, and arguments as numbers below 0.
    """
    found = find_runs(colours)
    runs = _Alignment(reads).left_out(found) if found else []
    num_left_out = sum(len(run.left_out) for run in runs)
    return runs if num_left_out >= _WORTH_LEAVING_OUT * len(colours) else []


def find_runs(colours: Sequence[int]) -> list[Run]:
    """Disjoint stretches that repeat so often that some can be left out, longest first.

    Args:
        colours: By equation; equal ones have one.
    """
    text = np.asarray(colours)
    last: dict[int, int] = {}
    gaps: Counter[int] = Counter()
    for index, colour in enumerate(colours):
        if colour in last:
            gaps[index - last[colour]] += 1
        last[colour] = index
    found = []
    for period, count in gaps.most_common(_MOST_PERIODS):
        if count < _LEAST_REPEATS - 1:
            break
        same = np.concatenate(([False], text[:-period] == text[period:], [False]))
        edges = np.flatnonzero(np.diff(same.astype(np.int8))).reshape(-1, 2)
        found += [
            Run(start, stop + period, period)
            for start, stop in edges.tolist()
            if stop + period - start >= _LEAST_REPEATS * period
        ]
    disjoint: list[Run] = []
    for run in sorted(found, key=lambda run: (run.start - run.stop, run.period, run.start)):
        if all(run.stop <= other.start or other.stop <= run.start for other in disjoint):
            disjoint.append(run)
    return disjoint


@dataclass(frozen=True, slots=True)
class _Placed:
    """A run whose copies have numbers of layers: `first + sign * copy`, from `start` on."""

    run: Run
    start: int
    sign: int
    first: int

    @property
    def layers(self) -> tuple[int, int]:
        last = self.first + self.sign * ((self.run.stop - self.start) // self.run.period - 1)
        return min(self.first, last), max(self.first, last)

    def layer(self, equation: int) -> int:
        return self.first + self.sign * ((equation - self.start) // self.run.period)

    def without(self, first: int, last: int) -> Run:
        """The run without some layers."""
        copies = sorted(self.sign * (layer - self.first) for layer in (first, last))
        starts = [self.start + copy * self.run.period for copy in (copies[0], copies[1] + 1)]
        return replace(self.run, left_out=range(*starts))


@dataclass(slots=True)
class _Alignment:
    """Gives the copies of runs their numbers of layers.

    Args:
        reads: By equation, as for `equal_layers`.
    """

    reads: Sequence[Sequence[int]]
    _layers: dict[int, int | None] = field(default_factory=dict)  # None: of several
    _beside: Mapping[int, list[int]] = field(init=False)

    def __post_init__(self) -> None:
        beside: defaultdict[int, list[int]] = defaultdict(list)
        for equation, read in enumerate(self.reads):
            for one in read:
                beside[equation].append(one)
                beside[one].append(equation)
        self._beside = beside

    def left_out(self, runs: Sequence[Run]) -> list[Run]:
        anchor, *pending = runs
        placed = [self._place(_Placed(anchor, self._narrowest(anchor), 1, 0))]
        while pending:
            links = {run: list(self._links(run)) for run in pending}
            run = max(pending, key=lambda run: len(links[run]))
            pending.remove(run)
            if found := _aligned(run, links[run]):
                placed.append(self._place(found))
        first = max(one.layers[0] for one in placed) + KEPT
        last = min(one.layers[1] for one in placed) - KEPT
        return [one.without(first, last) for one in placed] if first <= last else []

    def _place(self, placed: _Placed) -> _Placed:
        run = placed.run
        for equation in range(run.start, run.stop):
            layer = self._layers[equation] = placed.layer(equation)
            for argument in self.reads[equation]:
                if argument < 0 and self._layers.setdefault(argument, layer) != layer:
                    self._layers[argument] = None
        return placed

    def _links(self, run: Run) -> Iterable[tuple[int, int]]:
        """Equations of a run, each with a layer that it reads from, or that reads it."""
        for equation in range(run.start, run.stop):
            for other in self._beside.get(equation, ()):
                layer = self._layers.get(other)
                if layer is not None:
                    yield equation, layer

    def _narrowest(self, run: Run) -> int:
        """The first equation, of a period, before which the fewest values are read across."""
        across = np.zeros(run.stop - run.start + 1, np.int64)
        last: dict[int, int] = {}
        for equation in range(run.start, run.stop):
            for one in self.reads[equation]:
                if one >= run.start and equation - one < run.period:
                    last[one] = equation
        for maker, reader in last.items():
            across[maker + 1 - run.start] += 1
            across[reader + 1 - run.start] -= 1
        inner = np.cumsum(across)[run.period : 2 * run.period]
        return run.start + int(np.argmin(inner))


def _aligned(run: Run, links: Sequence[tuple[int, int]]) -> _Placed | None:
    """The start, direction and first layer of a run that most links agree with; None: too few."""
    if not links:
        return None
    equations, layers = np.array(links).T
    best: tuple[int, _Placed] | None = None
    for start in range(run.start, run.start + run.period):
        copies = (equations - start) // run.period
        for sign in (1, -1):
            firsts, counts = np.unique(layers - sign * copies, return_counts=True)
            most = int(np.argmax(counts))
            if best is None or counts[most] > best[0]:
                best = int(counts[most]), _Placed(run, start, sign, int(firsts[most]))
    return best[1] if best is not None and 2 * best[0] > len(links) else None
