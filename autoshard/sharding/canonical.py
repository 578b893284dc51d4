"""Repairing a sharding's spelling: one layout, one text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from autoshard.sharding.axes import AxisRef
from autoshard.sharding.mesh import Mesh
from autoshard.sharding.sharding import DimSharding, Sharding
from autoshard.sharding.verify import in_mesh_order


def merge_axes(axes: Iterable[AxisRef], mesh: Mesh) -> tuple[AxisRef, ...]:
    """Join neighbouring sub-axes, name whole axes as such, drop sub-axes of size 1.

    Raises:
        ShardingError: The mesh lacks one of the axes.
    """
    merged: list[AxisRef] = []
    for axis in axes:
        axis = axis.canonical(mesh)
        if axis.size == 1:
            continue
        if merged and merged[-1].can_merge(axis):
            axis = merged.pop().merge(axis, mesh)
        merged.append(axis)
    return tuple(merged)


def canonicalize(sharding: Sharding, mesh: Mesh) -> Sharding:
    """The same sharding, spelled the one way `verify_sharding` takes.

    Neighbouring sub-axes are merged, a sub-axis that is all of its axis becomes that axis,
    replicated and unreduced axes go into mesh order, and a closed empty dimension loses its
    priority. Axes used twice or overlapping are left for `verify_sharding` to name.

    Raises:
        ShardingError: The mesh lacks one of the axes.
    """
    mesh = sharding.inlined_mesh or mesh
    dims = []
    for dim in sharding.dims:
        axes = merge_axes(dim.axes, mesh)
        priority = dim.priority if axes or dim.is_open else None
        dims.append(DimSharding(axes, dim.is_open, priority))
    return replace(
        sharding,
        dims=tuple(dims),
        replicated=merge_axes(in_mesh_order(sharding.replicated, mesh), mesh),
        unreduced=merge_axes(in_mesh_order(sharding.unreduced, mesh), mesh),
    )
