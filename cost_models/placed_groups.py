"""Groups of devices by the places of all devices, whatever order a mesh has them in."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from cost_models.links import AxisLink, DimPart, GroupDim, LinkDim, group_dim
from cost_models.routes import scattered_group

IntArray = NDArray[np.int64]

PartOfAxis = tuple[int, int, int]
"""Index of a mesh axis, size of what lies outside the part in it, size of the part."""


def placed_group(
    dims: tuple[LinkDim, ...],
    places: IntArray,
    axis_sizes: tuple[int, ...],
    parts: tuple[PartOfAxis, ...],
) -> tuple[GroupDim, ...]:
    """What a group of devices finds: dimension by dimension where it is a grid, else by routing.

    Args:
        dims: Of the machine, outermost first.
        places: int64[num_devices, num_dims] where each device of the mesh is, last axis fastest.
        axis_sizes: Of the mesh.
        parts: Of mesh axes that the group spans.
    """
    members = _members(axis_sizes, parts)
    if members.shape[1] == 1:
        return ()
    grid = _as_grid(dims, places, members)
    if grid is None:
        return (scattered_group(dims, places, members),)
    return tuple(group_dim(part.dim, part.size, part.pre_size) for part in grid)


def placed_axis(
    dims: tuple[LinkDim, ...], places: IntArray, axis_sizes: tuple[int, ...], axis: int
) -> AxisLink:
    """A whole mesh axis, as `placed_group` sees it."""
    size = axis_sizes[axis]
    members = _members(axis_sizes, ((axis, 1, size),))
    if size == 1:
        return AxisLink(1, ())
    grid = _as_grid(dims, places, members)
    if grid is None:
        return AxisLink(size, (), scattered_group(dims, places, members))
    return AxisLink(size, grid)


def _members(axis_sizes: tuple[int, ...], parts: tuple[PartOfAxis, ...]) -> IntArray:
    """int64[num_groups, size]: the mesh devices of each group, all groups of the mesh."""
    cuts: list[int] = []
    inside: list[int] = []
    for axis, size in enumerate(axis_sizes):
        below = 1
        for _, pre_size, part_size in sorted(part for part in parts if part[0] == axis):
            cuts.append(pre_size // below)
            inside.append(len(cuts))
            cuts.append(part_size)
            below = pre_size * part_size
        cuts.append(size // below)
    devices = np.arange(math.prod(axis_sizes), dtype=np.int64).reshape(cuts)
    outside = [place for place in range(len(cuts)) if place not in inside]
    num_members = math.prod(cuts[place] for place in inside)
    return devices.transpose(*outside, *inside).reshape(-1, num_members)


def _as_grid(
    dims: tuple[LinkDim, ...], places: IntArray, members: IntArray
) -> tuple[DimPart, ...] | None:
    """The part of each dimension that every group takes, if all are grids of one form."""
    parts = []
    for index, dim in enumerate(dims):
        found = np.sort(places[members, index], axis=1)
        found -= found[:, :1]
        steps = np.unique(found[0])
        if not (found == found[0]).all():
            return None
        if len(steps) == 1:
            continue
        stride = int(steps[1])
        even = (np.diff(steps) == stride).all() and dim.size % (stride * len(steps)) == 0
        starts = places[members, index].min(axis=1) % (stride * len(steps))
        if not even or (starts >= stride).any():
            return None
        parts.append(DimPart(dim, dim.size // (stride * len(steps)), len(steps)))
    if math.prod(part.size for part in parts) != members.shape[1]:
        return None
    return tuple(parts)
