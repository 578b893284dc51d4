"""Equal layers in a sequence of equations: runs in which they repeat, and which copy is of which.

Layers written one after the other make several runs: forward, backward, in the other order, and one
through each stage of the optimizer, by name there (`layer_10` before `layer_2`). Which copy of one
run goes with which of another, reads of values and shared arguments tell.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

import numpy as np

KEPT = 1
"""Layers that stay at each end. A choice: a border differs from the layer beside it."""
_LEAST_REPEATS = 2 * KEPT + 2
_WORTH_LEAVING_OUT = 0.5
"""Of all equations, at least. A choice: else the smaller program is as long to look at."""
_WORTH_ALIGNING = 0.5
"""Of all layers, at least. A choice: shorter runs stay, so that layers they lack can go."""
_MOST_PERIODS = 256  # that are tried, those seen most often


@dataclass(frozen=True, slots=True)
class Run:
    """A stretch of equations in which each is like the one a period later.

    Args:
        start: The first equation.
        stop: Behind the last one.
        period: Equations of a layer.
        left_out: Those of the layers that others stand for, in order; whole periods.
    """

    start: int
    stop: int
    period: int
    left_out: tuple[int, ...] = ()

    @property
    def num_copies(self) -> int:
        """Whole layers."""
        return (self.stop - self.start) // self.period

    def with_copies(self, number: int) -> Run:
        """The run as so many larger layers, where it has as many times more."""
        return replace(self, period=self.period * max(1, self.num_copies // number))

    def kept_copy(self, equation: int) -> int:
        """The last equation before those left out that one of them is a copy of."""
        first = self.left_out[0]
        return first - self.period + (equation - first) % self.period

    def inner_copy(self, equation: int) -> int:
        """The equation of a layer that stays, and is not the last one, that one is a copy of.

        Where two layers stay behind those left out, of the first of these: the one before may be
        the first that meets what no other does.
        """
        behind = self.left_out[-1] + 1
        if self.stop - behind < 2 * self.period:
            return self.kept_copy(equation)
        return behind + (equation - behind) % self.period


def equal_layers(colours: Sequence[int], reads: Sequence[Sequence[int]]) -> Iterator[list[Run]]:
    """Runs of layers of which all but a few at each end are left out; the smallest layers first.

    Where some runs have fewer copies than the longest (of layers that are computed again two at
    once), the layers of the others are then taken as many at once.

    Args:
        colours: By equation; equal ones have one.
        reads: By equation, the earlier ones that it reads, and arguments as numbers below 0.
    """
    found = find_runs(colours)
    most = found[0].num_copies if found else 0
    for number in dict.fromkeys((most, *(run.num_copies for run in found))):
        if not 0 < number <= most:
            continue
        runs = [run.with_copies(number) for run in found]
        anchor = next(run for run, one in zip(runs, found, strict=True) if one.num_copies == number)
        runs = _Alignment(reads).left_out([anchor, *(run for run in runs if run is not anchor)])
        if sum(len(run.left_out) for run in runs) >= _WORTH_LEAVING_OUT * len(colours):
            yield runs


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
    """A run whose copies, from `start` on, have numbers of layers.

    Args:
        run: The run.
        start: Of the first whole copy.
        layers: By copy; None where nothing tells.
    """

    run: Run
    start: int
    layers: tuple[int | None, ...]

    def layer(self, equation: int) -> int | None:
        copy = (equation - self.start) // self.run.period
        return self.layers[copy] if 0 <= copy < len(self.layers) else None

    def without(self, left_out: Set[int]) -> Run:
        """The run without some layers; the first copies stay, as ones to stand for others."""
        period = self.run.period
        starts = (self.start + copy * period for copy in range(KEPT, len(self.layers)))
        gone = (start for start in starts if self.layer(start) in left_out)
        return replace(self.run, left_out=tuple(e for s in gone for e in range(s, s + period)))


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
        start = self._narrowest(anchor)
        layers = tuple(range((anchor.stop - start) // anchor.period))
        placed = [self._place(_Placed(anchor, start, layers))]
        while pending:
            links = {run: list(self._links(run)) for run in pending}
            run = max(pending, key=lambda run: len(links[run]))
            pending.remove(run)
            found = _aligned(run, links[run])
            if found and len(set(found.layers)) > _WORTH_ALIGNING * len(layers):
                placed.append(self._place(found))
        inner = set(layers).intersection(*(one.layers[KEPT:-KEPT] for one in placed))
        return [one.without(inner) for one in placed] if inner else []

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
    """The start of a run and the layers of its copies that most links agree with; None: too few."""
    if not links:
        return None
    equations, layers = np.array(links).T
    num_layers = int(layers.max()) + 1
    best: tuple[int, _Placed] | None = None
    for start in range(run.start, run.start + run.period):
        copies = (equations - start) // run.period
        pairs, counts = np.unique(copies * num_layers + layers, return_counts=True)
        by_count = np.lexsort((counts, pairs // num_layers))  # of each copy the most common last
        pairs, counts = pairs[by_count], counts[by_count]
        last = np.flatnonzero(np.diff(pairs // num_layers, append=pairs[-1] // num_layers + 1))
        agreeing = int(counts[last].sum())
        if best is None or agreeing > best[0]:
            layer_by_copy = {int(p) // num_layers: int(p) % num_layers for p in pairs[last]}
            num_copies = (run.stop - start) // run.period
            best = agreeing, _Placed(run, start, tuple(map(layer_by_copy.get, range(num_copies))))
    return best[1] if best is not None and 2 * best[0] > len(links) else None
