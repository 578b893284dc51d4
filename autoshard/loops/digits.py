"""The dimensions of a tensor as digits that both its home and the loops can speak of.

A home cuts dimension `k` into (2 pieces) x (4 left over); the loops count it as (4 parts) x (2).
Written in digits of sizes 2, 2 and 2, each digit is either a grid dimension at home or inside a
piece, and either fixed or free in a turn. Then moving a tensor from home to where it is needed is
one decision for each digit: gather it, slice it, or fetch it from another processor.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from autoshard.errors import ScheduleError
from autoshard.loops.distribution_text import format_distribution
from autoshard.loops.placed import Placed
from autoshard.loops.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Digit:
    """One digit of one dimension of a tensor.

    Args:
        dim: The dimension.
        size: How many values it takes.
        leaf: The loop or rotated variable it is a part of.
        leaf_unit: Its place there: the digit is `leaf // leaf_unit % size`.
        grid_dim: The grid dimension that cuts it at home; None for one inside each piece.
        home_unit: Its place in the coordinate of that grid dimension.
    """

    dim: int
    size: int
    leaf: str
    leaf_unit: int
    grid_dim: int | None
    home_unit: int

    def is_fixed(self, schedule: Schedule, fixed: Collection[str]) -> bool:
        """Whether the loops `fixed` decide it."""
        return set(schedule.loops_of(self.leaf)) <= set(fixed)

    def value(self, schedule: Schedule, at: Mapping[str, Any]) -> Any:
        """Its value where the loops it is made of have the values `at`."""
        return schedule.value(self.leaf, at) // self.leaf_unit % self.size

    def is_own_coordinate(self, schedule: Schedule) -> bool:
        """Whether each processor needs of it just what it has at home."""
        loops = {loop.variable: loop.grid_dim for loop in schedule.grid_loops}
        return (
            self.grid_dim is not None
            and loops.get(self.leaf) == self.grid_dim
            and self.leaf_unit == self.home_unit
        )


def digits_of(placed: Placed, tensor: str) -> tuple[Digit, ...]:
    """The digits of a tensor, those of its first dimension first, major to minor.

    Raises:
        ScheduleError: The home deals in turns or fixes a coordinate, or home and loops cut a
            dimension at places of which neither is a multiple of the other.
    """
    home = placed.home_of[tensor]
    text = format_distribution(home)
    if home.fixed_dims:
        raise ScheduleError(
            f"{tensor} lives on a face of the grid, and an array has a piece on every device",
            where=text,
            fix="spread it behind the face: spread_faces does",
        )
    found: list[Digit] = []
    for dim, variable in enumerate(placed.schedule.statement.access(tensor).indices):
        cuts = home.cuts(dim)
        if any(cut.block is not None for cut in cuts):
            raise ScheduleError(
                f"{tensor} is dealt out in turns, and the pieces of an array are runs of"
                " neighbours",
                where=text,
                fix="use a home without %; divide and split the loop to take its parts in turns",
            )
        at_home: list[tuple[int | None, int]] = [
            (cut.machine_dim, placed.grid[cut.machine_dim]) for cut in cuts
        ]
        left = placed.schedule.sizes[variable]
        for _, size in at_home:
            left //= size
        at_home.append((None, left))
        leaves = placed.schedule.leaves(variable)
        refined = _refine([size for _, size in leaves], [size for _, size in at_home])
        if refined is None:
            raise ScheduleError(
                f"home and loops cut variable {variable} at places that do not fit together",
                where=f"{text}; loops of sizes {', '.join(str(size) for _, size in leaves)}",
                fix="divide the loop into a multiple or a divisor of the pieces at home",
            )
        for size, leaf, leaf_unit, place, home_unit in refined:
            if size > 1:
                found.append(
                    Digit(dim, size, leaves[leaf][0], leaf_unit, at_home[place][0], home_unit)
                )
    return tuple(found)


def _refine(loops: list[int], home: list[int]) -> list[tuple[int, int, int, int, int]] | None:
    """Size, place in `loops`, unit there, place in `home`, unit there: of each common digit.

    Both lists multiply to the same number, major first. None if they do not refine one another.
    """
    result = []
    one, other = 0, 0
    left, right = loops[0], home[0]
    while True:
        if left % right and right % left:
            return None
        size = min(left, right)
        left //= size
        right //= size
        result.append((size, one, left, other, right))
        while left == 1 and one + 1 < len(loops):
            one += 1
            left = loops[one]
        while right == 1 and other + 1 < len(home):
            other += 1
            right = home[other]
        if left == right == 1:
            return result
