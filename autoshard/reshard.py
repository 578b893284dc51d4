"""The cheapest chain of collectives from one layout of a tensor to another.

Steps are what the partitioner can do in one go: slice (cut dimensions further), all-gather (undo
the minor cuts of a dimension), all-to-all (move the minor cuts of one dimension to another) and
collective-permute (the same pieces on other devices). All pairs of a tensor's layouts are solved
at once, as shortest paths.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from itertools import permutations, product
from math import gcd, prod
from typing import Protocol

import numpy as np
import numpy.typing as npt

from autoshard.layouts import Layout, MeshParts, Parts
from solvers import shortest_paths

_TIE = 1e-9
"""Share of its time by which a step is dearer than one that is taken before it at equal cost."""

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


class StepKind(Enum):
    """What one step of a reshard does."""

    SLICE = "slice"
    ALL_GATHER = "all-gather"
    ALL_TO_ALL = "all-to-all"
    PERMUTE = "collective-permute"


@dataclass(frozen=True, slots=True)
class Step:
    """One step: kind, the mesh parts it works over, and the layout after it."""

    kind: StepKind
    parts: Parts
    before: Layout
    after: Layout


def is_folded(step: Step, parts: MeshParts, shape: Sequence[int]) -> bool:
    """True of a step that compilers fold where one constant fills what it is given.

    A shard of one element is no broadcast: it is gathered, and so is what comes of it. Of
    all-to-alls XLA folds those that no compiler splits before into one operand for each device;
    host CPUs split them (jaxlib 0.10.2).

    Source: openxla/xla, `algebraic_simplifier.cc`, `HandleAllGather`, `HandleAllToAll`.
    """
    is_gather = step.kind is StepKind.ALL_GATHER
    return step.kind is StepKind.SLICE or (
        is_gather and prod(parts.local_shape(step.before, shape)) > 1
    )


def is_in_turn(step: Step) -> bool:
    """False of an all-gather along a dimension while a later one is sharded.

    The partitioner gathers the last dimension first.
    """
    if step.kind is not StepKind.ALL_GATHER:
        return True
    pairs = zip(step.before, step.after, strict=True)
    (gathered,) = (dim for dim, (before, after) in enumerate(pairs) if before != after)
    return not any(step.before[gathered + 1 :])


class CollectiveCosts(Protocol):
    """Seconds of collectives over mesh parts, for arrays of bytes per device."""

    def step_seconds(self, kind: StepKind, parts: Parts, num_bytes: FloatArray) -> FloatArray:
        """Seconds; `num_bytes` is the larger side: gathered result, else the operand."""
        ...


def steps_among(parts: MeshParts, layouts: Sequence[Layout], shape: Sequence[int]) -> list[Step]:
    """Every single step between two of the layouts.

    Args:
        parts: The mesh parts of this plan.
        layouts: Distinct layouts of one tensor, each dividing its dimensions evenly.
        shape: Of the tensor.
    """
    known = set(layouts)
    found = [step for layout in layouts for step in _moves_from(parts, layout, shape)]
    found = [step for step in found if step.after in known]
    found += [step for layout in layouts for step in _slices_to(layout, known)]
    found += _permutes(parts, layouts)
    return found


def _moves_from(parts: MeshParts, layout: Layout, shape: Sequence[int]) -> list[Step]:
    """All-gathers of the minor cuts of a dimension, and all-to-alls that give them to another."""
    found: list[Step] = []
    for dim, dim_parts in enumerate(layout):
        for length in range(1, len(dim_parts) + 1):
            kept, moved = dim_parts[: len(dim_parts) - length], dim_parts[-length:]
            gathered = _with(layout, dim, kept)
            found.append(Step(StepKind.ALL_GATHER, moved, layout, gathered))
            for other, other_parts in enumerate(layout):
                if other != dim and _divides(parts, shape[other], (*other_parts, *moved)):
                    after = _with(gathered, other, (*other_parts, *moved))
                    found.append(Step(StepKind.ALL_TO_ALL, moved, layout, after))
    return found


def _slices_to(layout: Layout, known: Set[Layout]) -> list[Step]:
    """Slices that end in a layout: any dimensions cut further at once, as one slice does it."""
    found = []
    for before in product(*(range(len(dim) + 1) for dim in layout)):
        start = tuple(dim[:length] for dim, length in zip(layout, before, strict=True))
        if start != layout and start in known:
            pairs = zip(layout, before, strict=True)
            new = tuple(part for dim, length in pairs for part in dim[length:])
            found.append(Step(StepKind.SLICE, new, start, layout))
    return found


def _permutes(parts: MeshParts, layouts: Sequence[Layout]) -> list[Step]:
    """Same pieces, other devices: all pairs that cut every dimension into as many pieces."""
    alike: dict[tuple[int, ...], list[Layout]] = {}
    for layout in layouts:
        alike.setdefault(tuple(map(parts.num_shards, layout)), []).append(layout)
    return [
        Step(StepKind.PERMUTE, _moved_along(parts, start, end), start, end)
        for group in alike.values()
        for start, end in permutations(group, 2)
    ]


def _moved_along(parts: MeshParts, start: Layout, end: Layout) -> Parts:
    """The parts along which a permutation moves pieces."""
    if parts.is_own(start) and parts.is_own(end):
        return _misplaced(start, end)
    return parts.crossed(start, end)


def _misplaced(start: Layout, end: Layout) -> Parts:
    """Parts that are not at the same place in both layouts."""
    places = [
        {(dim, place): part for dim, cut in enumerate(layout) for place, part in enumerate(cut)}
        for layout in (start, end)
    ]
    either = dict.fromkeys((*places[0], *places[1]))
    pairs = ((places[0].get(place), places[1].get(place)) for place in either)
    parts = {part for a, b in pairs if a != b for part in (a, b) if part is not None}
    return tuple(sorted(parts))


def _with(layout: Layout, dim: int, dim_parts: Parts) -> Layout:
    return (*layout[:dim], dim_parts, *layout[dim + 1 :])


def _divides(parts: MeshParts, size: int, dim_parts: Parts) -> bool:
    return size % parts.num_shards(dim_parts) == 0


@dataclass(frozen=True, eq=False)
class ReshardTable:
    """All-pairs reshards of one tensor.

    Args:
        layouts: The layouts it may have.
        index: Their places.
        pieces: int64[num_layouts]: into how many pieces each cuts the tensor.
        seconds: float64[num_layouts, num_layouts]; inf where there is no way.
        first_step: int32[num_layouts, num_layouts]: index of the step to take first, -1 for none.
        steps: The steps `first_step` points to.
    """

    layouts: tuple[Layout, ...]
    index: dict[Layout, int]
    pieces: IntArray
    seconds: FloatArray
    first_step: npt.NDArray[np.int32]
    steps: tuple[Step, ...]

    def step_seconds(self, step: Step) -> float:
        """Seconds of one step of a chain."""
        return float(self.seconds[self.index[step.before], self.index[step.after]])

    def chain(self, start: Layout, end: Layout) -> tuple[Step, ...]:
        """The cheapest steps from one layout to another, in order."""
        at, goal = self.index[start], self.index[end]
        found = []
        while at != goal:
            step = self.steps[self.first_step[at, goal]]
            found.append(step)
            at = self.index[step.after]
        return tuple(found)

    @cached_property
    def moves(self) -> npt.NDArray[np.bool_]:
        """bool[num_layouts, num_layouts]: whether a reshard is more than cutting further."""
        moved = np.ones(self.seconds.shape, dtype=np.bool_)
        for end, layout in enumerate(self.layouts):
            prefixes = [[dim[:length] for length in range(len(dim) + 1)] for dim in layout]
            for coarser in product(*prefixes):
                start = self.index.get(coarser)
                if start is not None:
                    moved[start, end] = False
        return moved

    @cached_property
    def num_steps(self) -> IntArray:
        """int64[num_layouts, num_layouts]: steps of the cheapest way, two for two or more."""
        _, after = self._cuts
        is_last = after[self.first_step] == np.arange(len(self.layouts))
        return np.where(self.first_step < 0, 0, np.where(is_last, 1, 2))

    @cached_property
    def sent_from(self) -> IntArray:
        """int64[num_layouts, num_layouts]: the layout from which a way first sends; -1: from none.

        What comes before it on the way only cuts further.
        """
        is_cut, after = self._cuts
        goals = np.arange(len(self.layouts))
        at = np.broadcast_to(goals[:, None], self.first_step.shape)
        while True:
            step = self.first_step[at, goals]
            cuts = (step >= 0) & is_cut[step]
            if not cuts.any():
                return np.where(step < 0, -1, at)
            at = np.where(cuts, after[step], at)

    @cached_property
    def cut_from(self) -> IntArray:
        """int64[num_layouts, num_layouts]: the layout after which a way only cuts further.

        Where the last step sends, and where there is no way, the end itself.
        """
        is_cut, after = self._cuts
        goals = np.arange(len(self.layouts))
        found = at = np.broadcast_to(goals[:, None], self.first_step.shape)
        while True:
            step = self.first_step[at, goals]
            if (step < 0).all():
                return np.where(np.isfinite(self.seconds), found, goals)
            at = np.where(step < 0, at, after[step])
            found = np.where((step < 0) | is_cut[step], found, at)

    @cached_property
    def _cuts(self) -> tuple[npt.NDArray[np.bool_], IntArray]:
        """Of every step: it only cuts, and the place of the layout after it."""
        is_cut = np.array([step.kind is StepKind.SLICE for step in self.steps] or [True])
        after = np.array([self.index[step.after] for step in self.steps] or [0], dtype=np.int64)
        return is_cut, after


def turned_shares(table: ReshardTable, parts: MeshParts, shape: Sequence[int]) -> FloatArray:
    """How much is gathered along a dimension that is not the leading one of what a device holds.

    Returns:
        float64[num_layouts, num_layouts]: of every chain, the share of the tensor that a device
        has after the largest such gather; 0 where there is none.
    """
    by_step = np.array([_turned_share(step, parts, shape) for step in table.steps] or [0.0])
    after = np.array([table.index[step.after] for step in table.steps] or [0], dtype=np.int64)
    goals = np.arange(len(table.layouts))
    at = np.broadcast_to(goals[:, None], table.first_step.shape)
    found = np.zeros(table.first_step.shape)
    while True:
        step = table.first_step[at, goals]
        if (step < 0).all():
            return found
        found = np.maximum(found, np.where(step < 0, 0.0, by_step[step]))
        at = np.where(step < 0, at, after[step])


def widens_rows(
    table: ReshardTable, parts: MeshParts, shape: Sequence[int], lanes: int
) -> npt.NDArray[np.bool_]:
    """Whether a reshard gathers rows from pieces that are shorter than a register's lanes.

    Returns:
        bool[num_layouts, num_layouts]: from row to column.
    """
    local = np.array([parts.local_shape(layout, shape) for layout in table.layouts])
    columns, elements = local[:, -1], local.prod(axis=1)
    is_gather = (columns[:, None] < columns) & (elements[:, None] < elements)
    found: npt.NDArray[np.bool_] = is_gather & (columns[:, None] < lanes)
    return found


def joins_columns(
    table: ReshardTable, parts: MeshParts, shape: Sequence[int]
) -> npt.NDArray[np.bool_]:
    """Whether a reshard exchanges rows for columns, which arrive in another number than eight.

    Eight pieces fill the rows of a tile.

    Returns:
        bool[num_layouts, num_layouts]: from row to column.
    """
    local = np.array([parts.local_shape(layout, shape) for layout in table.layouts])
    columns, rows = local[:, -1], local[:, :-1].prod(axis=1)
    is_joined = (columns[:, None] < columns) & (rows[:, None] > rows)
    found: npt.NDArray[np.bool_] = is_joined & (rows[:, None] != 8 * rows)
    return found


def _turned_share(step: Step, parts: MeshParts, shape: Sequence[int]) -> float:
    if step.kind is not StepKind.ALL_GATHER:
        return 0.0
    held = parts.local_shape(step.after, shape)
    grown = next(i for i, cut in enumerate(step.before) if cut != step.after[i])
    if prod(held[:grown]) == 1:
        return 0.0
    return 1.0 / parts.num_pieces(step.after)


@dataclass(slots=True)
class Resharder:
    """Makes reshard tables, one per tensor type and set of layouts.

    Args:
        parts: The mesh parts of this plan.
        costs: What a step takes.
    """

    parts: MeshParts
    costs: CollectiveCosts
    _steps: dict[tuple[tuple[Layout, ...], tuple[int, ...]], _StepArrays] = field(
        default_factory=dict
    )
    _tables: dict[tuple[tuple[Layout, ...], tuple[int, ...], int], ReshardTable] = field(
        default_factory=dict
    )

    def table(self, layouts: tuple[Layout, ...], shape: tuple[int, ...], bits: int) -> ReshardTable:
        """All-pairs reshards among `layouts` of a tensor; chains stay within these layouts.

        A tensor whose elements have no bits is filled by one constant: steps that compilers fold
        take no time, others that of bytes.
        """
        key = (layouts, shape, bits)
        table = self._tables.get(key)
        if table is None:
            table = self._solve(layouts, shape, bits)
            self._tables[key] = table
        return table

    def _solve(
        self, layouts: tuple[Layout, ...], shape: tuple[int, ...], bits: int
    ) -> ReshardTable:
        arrays = self._step_arrays(layouts, shape)
        total = prod(shape) * (bits or 8) / 8
        weights = np.zeros(len(arrays.steps))
        for (kind, step_parts), members in arrays.groups:
            num_bytes = total / arrays.shards[members]
            weights[members] = self.costs.step_seconds(kind, step_parts, num_bytes)
        weights[arrays.out_of_turn] *= 1 + _TIE
        if not bits:
            weights *= [not is_folded(step, self.parts, shape) for step in arrays.steps]
        size = len(layouts)
        steps = np.full((size, size), -1, dtype=np.int32)
        order = np.argsort(-weights, kind="stable")  # of parallel steps the cheapest stays
        steps[arrays.before[order], arrays.after[order]] = order
        back = np.full((size, size), np.inf)  # the ways back, whose last step is the first one
        back.T[steps >= 0] = weights[steps[steps >= 0]]
        found, towards = shortest_paths(back)
        at = np.arange(size)[:, None]
        first = np.where(towards.T >= 0, steps[at, np.maximum(towards.T, 0)], np.int32(-1))
        seconds = np.ascontiguousarray(found.T)
        index = {layout: i for i, layout in enumerate(layouts)}
        pieces = np.array([self.parts.num_pieces(layout) for layout in layouts], dtype=np.int64)
        return ReshardTable(layouts, index, pieces, seconds, first, arrays.steps)

    def _step_arrays(self, layouts: tuple[Layout, ...], shape: tuple[int, ...]) -> _StepArrays:
        num_devices = self.parts.mesh.num_devices
        plain = tuple(gcd(size, num_devices) for size in shape)  # all that steps ask of a shape
        key = (layouts, plain)
        arrays = self._steps.get(key)
        if arrays is None:
            arrays = _step_arrays(self.parts, layouts, plain)
            self._steps[key] = arrays
        return arrays


@dataclass(frozen=True, slots=True, eq=False)
class _StepArrays:
    steps: tuple[Step, ...]
    before: npt.NDArray[np.int64]
    after: npt.NDArray[np.int64]
    shards: FloatArray  # pieces the larger side of the step is one of
    groups: tuple[tuple[tuple[StepKind, Parts], npt.NDArray[np.int64]], ...]
    out_of_turn: npt.NDArray[np.bool_]  # gathers of a dimension before which a later one is cut


def _step_arrays(
    parts: MeshParts, layouts: tuple[Layout, ...], shape: tuple[int, ...]
) -> _StepArrays:
    index = {layout: i for i, layout in enumerate(layouts)}
    steps = steps_among(parts, layouts, shape)
    groups: dict[tuple[StepKind, Parts], list[int]] = {}
    shards = []
    for i, step in enumerate(steps):
        groups.setdefault((step.kind, tuple(sorted(step.parts))), []).append(i)
        larger = step.after if step.kind in (StepKind.ALL_GATHER, StepKind.SLICE) else step.before
        shards.append(parts.num_pieces(larger))
    return _StepArrays(
        tuple(steps),
        np.array([index[s.before] for s in steps], dtype=np.int64),
        np.array([index[s.after] for s in steps], dtype=np.int64),
        np.array(shards, dtype=np.float64),
        tuple((key, np.array(members, dtype=np.int64)) for key, members in groups.items()),
        np.array([not is_in_turn(step) for step in steps], dtype=np.bool_),
    )
