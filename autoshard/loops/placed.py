"""A schedule together with where its tensors live, and what each turn of it needs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from autoshard.errors import ScheduleError
from autoshard.loops.distribution import Distribution, spread_faces
from autoshard.loops.distribution_text import format_distribution, parse_distribution
from autoshard.loops.holdings import Box, Coordinates, check_distribution, grid_points, holdings
from autoshard.loops.relations import Rotate
from autoshard.loops.schedule import Schedule


@dataclass(frozen=True)
class Placed:
    """A distributed schedule and a home for each of its tensors.

    Args:
        schedule: Over a grid.
        homes: Tensor and distribution, in the order of the statement.

    Raises:
        ScheduleError: The schedule is not distributed, or a tensor has no home.
        ShardingError: A home does not fit its tensor or the grid.
    """

    schedule: Schedule
    homes: tuple[tuple[str, Distribution], ...]

    def __post_init__(self) -> None:
        if not self.schedule.grid:
            raise ScheduleError(
                "the schedule is not distributed over a grid",
                where=str(self.schedule.statement),
                fix="call distribute first",
            )
        for access in self.schedule.statement.accesses:
            if access.tensor not in self.home_of:
                raise ScheduleError(
                    f"tensor {access.tensor} has no home",
                    where=str(self.schedule.statement),
                    fix=f"place it, as in {access.tensor}="
                    f"'{access.tensor} {''.join(access.indices)} -> ...'",
                )
            check_distribution(self.home_of[access.tensor], self.shape(access.tensor), self.grid)

    @property
    def grid(self) -> tuple[int, ...]:
        return self.schedule.grid

    @property
    def num_processors(self) -> int:
        return math.prod(self.grid)

    @cached_property
    def home_of(self) -> dict[str, Distribution]:
        return dict(self.homes)

    def shape(self, tensor: str) -> tuple[int, ...]:
        return self.schedule.shape(tensor)

    @cached_property
    def held(self) -> dict[str, dict[Coordinates, Box | None]]:
        """What each processor holds of each tensor at home."""
        return {
            tensor: holdings(home, self.shape(tensor), self.grid) for tensor, home in self.homes
        }

    def spread(self) -> Placed:
        """The same with every tensor that lives on a face of the grid spread behind it.

        Raises:
            ShardingError: A dimension cannot be cut that often.
        """
        homes = tuple(
            (tensor, spread_faces(home, self.shape(tensor), self.grid))
            for tensor, home in self.homes
        )
        return replace(self, homes=homes)

    def __str__(self) -> str:
        return "\n".join(format_distribution(home) for _, home in self.homes)

    def at_processor(self, processor: Coordinates) -> dict[str, int]:
        """The values of the loops over the grid on one processor."""
        loops = self.schedule.grid_loops
        return {loop.variable: processor[loop.grid_dim or 0] for loop in loops}

    def values(self, variable: str, at: Mapping[str, int]) -> np.ndarray:
        """int[n]: the values that a variable of the statement takes where loops are fixed."""
        free = [name for name in self.schedule.loops_of(variable) if name not in at]
        ranges = [np.arange(self.schedule.extent(name)) for name in free]
        known: dict[str, object] = dict(at)
        known |= dict(zip(free, np.meshgrid(*ranges, indexing="ij"), strict=True))
        return np.unique(np.asarray(self.schedule.value(variable, known)))

    def needs(self, tensor: str, at: Mapping[str, int]) -> Box:
        """What the loops inside need of a tensor where the loops `at` are fixed."""
        indices = self.schedule.statement.access(tensor).indices
        return tuple(self.values(name, at) for name in indices)

    def lanes(self, tensors: tuple[str, ...], at: Mapping[str, int]) -> Iterator[dict[str, int]]:
        """The turns of mirrored loops to be told apart: those whose rotation is under way at `at`.

        Two streams that run in opposite directions need their pieces side by side.
        """
        schedule = self.schedule
        used = {
            loop
            for tensor in tensors
            for name in schedule.statement.access(tensor).indices
            for loop in schedule.loops_of(name)
        }
        mirrors = [
            relation.mirrored
            for relation in schedule.relations
            if isinstance(relation, Rotate)
            and relation.mirrored is not None
            and relation.mirrored not in at
            and relation.mirrored in used
            and set(schedule.loops_of(relation.result)) <= set(at)
        ]
        for values in itertools.product((0, 1), repeat=len(mirrors)):
            yield dict(zip(mirrors, values, strict=True))

    def passed_on(self, tensor: str) -> dict[tuple[tuple[str, int], ...], Coordinates] | None:
        """Where the pieces of a rotated tensor come from, turn after turn: the offset per lane.

        In every turn of a rotated loop but the first, a processor at `c` uses what the one at
        `c + offset` (round the grid) used in the turn before.

        Returns:
            None where the tensor is not brought in a rotated loop, or no such offset exists.
        """
        schedule = self.schedule
        depth = schedule.depth(tensor)
        if depth == 0:
            return None
        loop = schedule.time_loops[depth - 1]
        rotations = [r for r in schedule.relations if isinstance(r, Rotate)]
        if not any(rotation.result == loop.variable for rotation in rotations):
            return None
        if any(rotation.result in schedule.relation_of for rotation in rotations):
            return None  # a rotated loop was cut further: its turns are not the pieces
        outer = {other.variable: 0 for other in schedule.time_loops[: depth - 1]}
        first = {**outer, loop.variable: 0}
        offsets: dict[tuple[tuple[str, int], ...], Coordinates] = {}
        for lane in self.lanes((tensor,), first):
            offset = self._offset(tensor, loop.variable, loop.extent, {**outer, **lane})
            if offset is None:
                return None
            offsets[tuple(lane.items())] = offset
        return offsets

    def _piece_digits(self, tensor: str, at: Mapping[str, Any]) -> Iterator[Any]:
        """The digits of a piece that are fixed: equal in turns that need the same piece."""
        schedule = self.schedule
        for name in schedule.statement.access(tensor).indices:
            for leaf, _ in schedule.leaves(name):
                if set(schedule.loops_of(leaf)) <= at.keys():
                    yield schedule.value(leaf, at)

    def _offset(
        self, tensor: str, loop: str, extent: int, outer: dict[str, int]
    ) -> Coordinates | None:
        shape = (*self.grid, extent)
        *coordinates, turns = np.indices(shape)
        over_grid = {
            one.variable: coordinates[one.grid_dim or 0] for one in self.schedule.grid_loops
        }
        digits = self._piece_digits(tensor, {**outer, **over_grid, loop: turns})
        pieces = np.array([np.broadcast_to(one, shape) for one in digits]).reshape(-1, *shape)
        before, after = pieces[..., :-1], pieces[..., 1:]
        dims = tuple(range(1, len(shape)))
        processors = grid_points(self.grid)
        for offset in sorted(processors, key=lambda o: (ring_distance(o, self.grid), o)):
            if (np.roll(before, [-place for place in offset], dims) == after).all():
                return offset if any(offset) else None
        return None


def placed(schedule: Schedule, **homes: str | Distribution) -> Placed:
    """Give each tensor of a schedule its home, as text or as a value.

    Raises:
        ScheduleError: A tensor has no home, or a home no tensor.
        ShardingError: A home cannot be read, or does not fit.
    """
    known = [access.tensor for access in schedule.statement.accesses]
    for tensor in homes:
        schedule.statement.access(tensor)
    read = {
        tensor: parse_distribution(home) if isinstance(home, str) else home
        for tensor, home in homes.items()
    }
    return Placed(schedule, tuple((tensor, read[tensor]) for tensor in known if tensor in read))


def shifted(processor: Coordinates, offset: Coordinates, grid: tuple[int, ...]) -> Coordinates:
    """The processor at `processor + offset`, round the grid."""
    return tuple((c + o) % n for c, o, n in zip(processor, offset, grid, strict=True))


def ring_distance(offset: Coordinates, grid: tuple[int, ...]) -> int:
    """Hops between processors that differ by `offset`, when each dimension is a ring."""
    return sum(min(o % n, -o % n) for o, n in zip(offset, grid, strict=True))


def box_key(box: Box) -> tuple[bytes, ...]:
    """The same for equal boxes, and hashable."""
    return tuple(indices.tobytes() for indices in box)


def box_words(box: Box) -> int:
    return math.prod(len(indices) for indices in box)


def box_within(inner: Box, outer: Box | None) -> bool:
    """Whether every point of `inner` is in `outer`."""
    if outer is None:
        return False
    return all(np.isin(a, b).all() for a, b in zip(inner, outer, strict=True))


def box_common(one: Box, other: Box) -> Box | None:
    """The points in both; None if there are none."""
    common = tuple(np.intersect1d(a, b) for a, b in zip(one, other, strict=True))
    return common if all(len(indices) for indices in common) else None
