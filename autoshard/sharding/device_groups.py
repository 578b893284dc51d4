"""Groups of devices that communicate, and which mesh axes that is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

from autoshard.sharding.axes import AxisRef
from autoshard.sharding.mesh import Mesh

Groups: TypeAlias = tuple[tuple[int, ...], ...]
"""Device positions (in mesh order) of each group."""


def spanned_axes(groups: Groups, mesh: Mesh) -> tuple[AxisRef, ...] | None:
    """The mesh axes, or parts of axes, along which the members of a group differ.

    Args:
        groups: Positions in the order of the mesh's devices.
        mesh: What the positions are in.

    Returns:
        In mesh order; None if the groups are not all the devices along some axes.
    """
    found: tuple[AxisRef, ...] | None = None
    for group in groups:
        axes = _spanned_by(group, mesh)
        if axes is None or (found is not None and axes != found):
            return None
        found = axes
    return found


def axes_crossed(pairs: Sequence[Sequence[int]], mesh: Mesh) -> tuple[AxisRef, ...]:
    """The mesh axes along which some pair of positions differs, in mesh order."""
    axes = []
    minor = math.prod(axis.size for axis in mesh.axes)
    for axis in mesh.axes:
        minor //= axis.size
        if any(a // minor % axis.size != b // minor % axis.size for a, b in pairs):
            axes.append(AxisRef(axis.name))
    return tuple(axes)


def _spanned_by(group: Sequence[int], mesh: Mesh) -> tuple[AxisRef, ...] | None:
    axes = []
    count = 1
    minor = math.prod(axis.size for axis in mesh.axes)
    for axis in mesh.axes:
        minor //= axis.size
        places = sorted({position // minor % axis.size for position in group})
        if len(places) == 1:
            continue
        steps = {after - before for before, after in pairwise(places)}
        step = steps.pop()
        size = len(places)
        if steps or axis.size % (step * size):
            return None
        is_whole = size == axis.size
        axes.append(AxisRef(axis.name) if is_whole else _part(axis.name, axis.size, step, size))
        count *= size
    return tuple(axes) if count == len(group) else None


def _part(name: str, whole: int, step: int, size: int) -> AxisRef:
    return AxisRef(name, whole // (step * size), size)
