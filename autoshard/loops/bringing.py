"""How an operand gets from home to where a turn needs it, decided digit by digit."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from autoshard.loops.delivery import Handover, delivery_rounds
from autoshard.loops.digits import Digit, digits_of
from autoshard.loops.holdings import Coordinates, grid_points
from autoshard.loops.placed import Placed, shifted

Lane: TypeAlias = tuple[tuple[str, int], ...]
"""Turns of mirrored loops that are told apart, and their values."""

PieceKey: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]
"""Where a piece lives (coordinates on the grid dimensions that cut the tensor), and which slice."""


@dataclass(eq=False)
class Bringing:
    """How one operand is brought at its place in the loops.

    * Digits that each processor has and needs are left alone; those inside a piece are sliced.
    * Grid dimensions of which every value is needed are gathered: one all-gather each.
    * If some dimension is neither, pieces are handed over from processor to processor, in rounds in
      which everybody gets each piece it lacks exactly once.

    Args:
        placed: The schedule and the homes.
        tensor: The operand.
        digits: Of the tensor.
        depth: The number of time loops around its place.
        lanes: Of which it is brought one by one.
        fixed: The loops that are fixed at its place.
        offsets: For each lane, where the next turn's piece comes from; None if it is not passed on.
        gathered: Grid dimensions that are gathered.
        is_delivered: Whether pieces are handed over.

    Raises:
        ScheduleError: Home and loops do not fit together.
    """

    placed: Placed
    tensor: str
    digits: tuple[Digit, ...] = field(init=False)
    depth: int = field(init=False)
    lanes: tuple[Lane, ...] = field(init=False)
    fixed: frozenset[str] = field(init=False)
    offsets: dict[Lane, Coordinates] | None = field(init=False)
    gathered: tuple[int, ...] = field(init=False)
    is_delivered: bool = field(init=False)

    def __post_init__(self) -> None:
        schedule = self.placed.schedule
        self.digits = digits_of(self.placed, self.tensor)
        self.depth = schedule.depth(self.tensor)
        self.lanes, self.fixed = lanes_at(self.placed, self.tensor, self.depth)
        self.offsets = self.placed.passed_on(self.tensor)
        by_dim: dict[int, list[Digit]] = {}
        for digit in self.digits:
            if digit.grid_dim is not None:
                by_dim.setdefault(digit.grid_dim, []).append(digit)
        gathered = [g for g, ds in by_dim.items() if not any(map(self.is_fixed, ds))]
        others = [d for g, ds in by_dim.items() if g not in gathered for d in ds]
        are_own = all(self.is_fixed(d) and d.is_own_coordinate(schedule) for d in others)
        self.gathered = tuple(sorted(gathered))
        self.is_delivered = not are_own or self.offsets is not None

    def is_fixed(self, digit: Digit) -> bool:
        return digit.is_fixed(self.placed.schedule, self.fixed)

    @property
    def is_passed_on(self) -> bool:
        """Whether each turn's piece comes from where it was used in the turn before."""
        return self.offsets is not None

    @property
    def free(self) -> tuple[Digit, ...]:
        """The digits that what is brought has."""
        return tuple(digit for digit in self.digits if not self.is_fixed(digit))

    @property
    def free_at_home(self) -> tuple[Digit, ...]:
        """Digits over the grid at home of which every value is needed."""
        return tuple(d for d in self.digits if d.grid_dim is not None and not self.is_fixed(d))

    @property
    def sliced(self) -> tuple[Digit, ...]:
        """Digits inside a piece of which one value is needed."""
        return tuple(d for d in self.digits if d.grid_dim is None and self.is_fixed(d))

    def passing(self, lane: Lane) -> tuple[tuple[Coordinates, Coordinates], ...]:
        """Sender and receiver of what is passed on between turns."""
        assert self.offsets is not None
        return passing(self.placed, self.offsets[lane])

    def wants(self, at: Mapping[str, Any]) -> dict[Coordinates, list[PieceKey]]:
        """The pieces that each processor wants in the turn `at`, in the order of their values."""
        return {p: self._keys(p, at) for p in grid_points(self.placed.grid)}

    def holders(self, key: PieceKey) -> list[Coordinates]:
        """The processors that have a piece at home."""
        cut = sorted({d.grid_dim for d in self.digits if d.grid_dim is not None})
        return [
            p
            for p in grid_points(self.placed.grid)
            if tuple(p[grid_dim] for grid_dim in cut) == key[0]
        ]

    def rounds(
        self, wants: Mapping[Coordinates, list[PieceKey]]
    ) -> tuple[tuple[Handover[PieceKey], ...], ...]:
        """Who hands what to whom so that all get what they want."""
        keys = dict.fromkeys(key for wanted in wants.values() for key in wanted)
        return delivery_rounds(wants, {key: self.holders(key) for key in keys}, self.placed.grid)

    def _keys(self, processor: Coordinates, at: Mapping[str, Any]) -> list[PieceKey]:
        schedule = self.placed.schedule
        here = {**at, **self.placed.at_processor(processor)}
        inside = tuple(int(d.value(schedule, here)) for d in self.sliced)
        over_grid = [(d, d.grid_dim) for d in self.digits if d.grid_dim is not None]
        known = {d: int(d.value(schedule, here)) for d, _ in over_grid if self.is_fixed(d)}
        keys = []
        for values in itertools.product(*(range(d.size) for d in self.free_at_home)):
            all_values = {**known, **dict(zip(self.free_at_home, values, strict=True))}
            coordinates = dict.fromkeys(sorted({grid_dim for _, grid_dim in over_grid}), 0)
            for digit, grid_dim in over_grid:
                coordinates[grid_dim] += all_values[digit] * digit.home_unit
            keys.append((tuple(coordinates.values()), inside))
        return keys


def lanes_at(placed: Placed, tensor: str, depth: int) -> tuple[tuple[Lane, ...], frozenset[str]]:
    """The lanes of a tensor brought inside `depth` time loops, and all loops fixed there."""
    schedule = placed.schedule
    fixed = {loop.variable: 0 for loop in schedule.grid_loops}
    fixed |= {loop.variable: 0 for loop in schedule.time_loops[:depth]}
    lanes = tuple(tuple(lane.items()) for lane in placed.lanes((tensor,), fixed))
    return lanes, frozenset(fixed) | {name for name, _ in lanes[0]}


def passing(placed: Placed, offset: Coordinates) -> tuple[tuple[Coordinates, Coordinates], ...]:
    """Sender and receiver of pieces that move by `offset`: each gets from the one at `+ offset`."""
    grid = placed.grid
    return tuple((shifted(p, offset, grid), p) for p in grid_points(grid))
