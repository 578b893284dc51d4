"""What each processor holds of a tensor, and the two maps of a distribution.

The first map takes a point of the tensor to its colour: the coordinates of the machine dimensions
that have a name. The second takes a colour to the processors that hold it. With both, a copy in
many places and a cut into many pieces are said apart.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from autoshard.errors import ShardingError
from autoshard.loops.distribution import Distribution, Fixed, Named
from autoshard.loops.distribution_text import format_distribution

Coordinates: TypeAlias = tuple[int, ...]
Indices: TypeAlias = NDArray[np.int64]
Box: TypeAlias = tuple[Indices, ...]
"""A product of index sets, each sorted: one for each dimension of a tensor."""


def grid_points(grid: tuple[int, ...]) -> Iterator[Coordinates]:
    """Every processor, the last dimension fastest."""
    return itertools.product(*(range(size) for size in grid))


def verify_distribution(
    distribution: Distribution, shape: tuple[int, ...], grid: tuple[int, ...]
) -> tuple[ShardingError, ...]:
    """Everything about `distribution` that the tensor's shape and the machine's do not admit."""
    text = format_distribution(distribution)
    found: list[ShardingError] = []

    def refuse(what: str, fix: str) -> None:
        found.append(ShardingError(what, where=text, fix=fix))

    if len(shape) != distribution.rank:
        refuse(
            f"the tensor has {len(shape)} dimensions and the distribution names"
            f" {distribution.rank}",
            "give one letter for each dimension of the tensor",
        )
    if len(grid) != distribution.machine_rank:
        refuse(
            f"the machine has {len(grid)} dimensions and the distribution"
            f" {distribution.machine_rank} entries",
            "give one entry for each dimension of the machine; * where all hold the same",
        )
    if found:
        return tuple(found)
    for place, size in enumerate(grid):
        entry = distribution.entry(place)
        if isinstance(entry, Fixed) and entry.coordinate >= size:
            refuse(
                f"coordinate {entry.coordinate} is fixed on machine dimension {place}, which has"
                f" size {size}",
                f"use a coordinate from 0 to {size - 1}",
            )
    for dim, extent in enumerate(shape):
        pieces = 1
        for cut in distribution.cuts(dim):
            size = grid[cut.machine_dim]
            unit = size * (cut.block or 1)
            if extent // pieces % unit or extent % pieces:
                name = distribution.dims[dim]
                refuse(
                    f"dimension {name} has size {extent}, which {pieces * unit} does not divide",
                    f"pad dimension {name} to"
                    f" {math.ceil(extent / (pieces * unit)) * pieces * unit}, or cut it less",
                )
                break
            pieces *= size
    return tuple(found)


def check_distribution(
    distribution: Distribution, shape: tuple[int, ...], grid: tuple[int, ...]
) -> None:
    """Raise the first thing that `verify_distribution` finds.

    Raises:
        ShardingError: Shape, machine and distribution do not fit.
    """
    for error in verify_distribution(distribution, shape, grid):
        raise error


def colour_dims(distribution: Distribution) -> tuple[int, ...]:
    """The machine dimensions a colour has a coordinate for: those with a name, in order."""
    places = range(distribution.machine_rank)
    return tuple(place for place in places if isinstance(distribution.entry(place), Named))


def dim_colours(
    distribution: Distribution, dim: int, extent: int, grid: tuple[int, ...]
) -> dict[int, Indices]:
    """For each machine dimension that cuts tensor dimension `dim`: int[extent], its coordinate."""
    rest = np.arange(extent)
    size_left = extent
    colours: dict[int, Indices] = {}
    for cut in distribution.cuts(dim):
        num = grid[cut.machine_dim]
        size_left //= num
        if cut.block is None:
            colours[cut.machine_dim] = rest // size_left
            rest = rest % size_left
        else:
            colours[cut.machine_dim] = rest // cut.block % num
            rest = rest // (cut.block * num) * cut.block + rest % cut.block
    return colours


def points_to_colours(
    distribution: Distribution, shape: tuple[int, ...], grid: tuple[int, ...]
) -> dict[Coordinates, Coordinates]:
    """The map P: every point of the tensor to its colour.

    Raises:
        ShardingError: Shape, machine and distribution do not fit.
    """
    check_distribution(distribution, shape, grid)
    by_dim = [dim_colours(distribution, d, extent, grid) for d, extent in enumerate(shape)]
    places = colour_dims(distribution)
    result: dict[Coordinates, Coordinates] = {}
    for point in itertools.product(*(range(extent) for extent in shape)):
        coordinates = {
            place: int(colours[index])
            for index, cuts in zip(point, by_dim, strict=True)
            for place, colours in cuts.items()
        }
        result[point] = tuple(coordinates[place] for place in places)
    return result


def colours_to_processors(
    distribution: Distribution, grid: tuple[int, ...]
) -> dict[Coordinates, tuple[Coordinates, ...]]:
    """The map F: every colour to the processors that hold it.

    Raises:
        ShardingError: The machine has another number of dimensions, or lacks a fixed coordinate.
    """
    if len(grid) != distribution.machine_rank:
        raise ShardingError(
            f"the machine has {len(grid)} dimensions and the distribution"
            f" {distribution.machine_rank} entries",
            where=format_distribution(distribution),
            fix="give one entry for each dimension of the machine; * where all hold the same",
        )
    places = colour_dims(distribution)
    result: dict[Coordinates, tuple[Coordinates, ...]] = {}
    for colour in itertools.product(*(range(grid[place]) for place in places)):
        wanted = dict(zip(places, colour, strict=True))
        for place in distribution.fixed_dims:
            entry = distribution.entry(place)
            assert isinstance(entry, Fixed)
            wanted[place] = entry.coordinate
        result[colour] = tuple(
            processor
            for processor in grid_points(grid)
            if all(processor[place] == value for place, value in wanted.items())
        )
    return result


def holdings(
    distribution: Distribution, shape: tuple[int, ...], grid: tuple[int, ...]
) -> dict[Coordinates, Box | None]:
    """What each processor holds: an index set per dimension, or None off a fixed face.

    Raises:
        ShardingError: Shape, machine and distribution do not fit.
    """
    check_distribution(distribution, shape, grid)
    by_dim = [dim_colours(distribution, d, extent, grid) for d, extent in enumerate(shape)]
    held: dict[Coordinates, Box | None] = {}
    for processor in grid_points(grid):
        if any(distribution.entry(p) != Fixed(processor[p]) for p in distribution.fixed_dims):
            held[processor] = None
            continue
        box = []
        for extent, cuts in zip(shape, by_dim, strict=True):
            mine = np.ones(extent, dtype=bool)
            for place, colours in cuts.items():
                mine &= colours == processor[place]
            box.append(np.flatnonzero(mine))
        held[processor] = tuple(box)
    return held
