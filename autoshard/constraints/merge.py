"""Two shardings asked of one tensor as one, or why they contradict each other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from autoshard.sharding import (
    AxisRef,
    DimSharding,
    Mesh,
    Sharding,
    format_dim_sharding,
    in_mesh_order,
    is_equivalent,
)


def merge_shardings(first: Sharding, second: Sharding, mesh: Mesh) -> Sharding | str:
    """The sharding that asks for both, or the reason why no tensor can end in both.

    A closed dimension is final; an open one may be cut further. Axes that one side holds replicated
    are off limits for the other. A dimension that both speak of is decided in the earlier round.

    Args:
        first: On the plan's mesh, or on the one it carries; canonical.
        second: Likewise, with as many dimensions.
        mesh: The plan's.
    """
    if first.inlined_mesh != second.inlined_mesh:
        return _across_meshes(first, second, mesh)
    own = first.inlined_mesh or mesh
    dims = []
    for number, (one, other) in enumerate(zip(first.dims, second.dims, strict=True)):
        dim = _merge_dims(one, other)
        if isinstance(dim, str):
            return f"dimension {number} {dim}"
        dims.append(dim)
    replicated = list(first.replicated)
    for ref in second.replicated:
        if not any(held.contains(ref) for held in replicated):
            replicated = [held for held in replicated if not ref.contains(held)] + [ref]
    for number, dim in enumerate(dims):
        for ref in dim.axes:
            if any(ref.overlaps(held) for held in replicated):
                return f"dimension {number} is sharded along {ref}, which is to replicate it"
    for (number, one), (later, other) in combinations(enumerate(dims), 2):
        for ref in one.axes:
            if any(ref.overlaps(axis) for axis in other.axes):
                return f"{ref} would shard dimensions {number} and {later}"
    return Sharding(
        tuple(dims),
        in_mesh_order(replicated, own),
        first.unreduced,
        first.mesh_name,
        first.inlined_mesh,
    )


def _merge_dims(first: DimSharding, second: DimSharding) -> DimSharding | str:
    closed, other = (first, second) if first.is_closed else (second, first)
    if other.is_closed and closed.axes != other.axes:
        return "is closed on both sides and differs"
    if closed.is_closed and not _begins_with(closed.axes, other.axes):
        return (
            f"is closed at {format_dim_sharding(closed)} and asked to begin with"
            f" {format_dim_sharding(other)}"
        )
    longer, shorter = closed, other
    if closed.is_open:
        longer, shorter = sorted((first, second), key=lambda dim: len(dim.axes), reverse=True)
        if not _begins_with(longer.axes, shorter.axes):
            longer, shorter = shorter, longer
        if not _begins_with(longer.axes, shorter.axes):
            return "is asked to begin with different axes"
    speaking = [
        dim for dim in (first, second) if dim.axes or dim.is_closed or dim.priority is not None
    ]
    priority = min((dim.round for dim in speaking), default=0) or None
    if not longer.axes and longer.is_closed:
        priority = None
    return DimSharding(longer.axes, longer.is_open, priority)


def _begins_with(axes: Sequence[AxisRef], start: Sequence[AxisRef]) -> bool:
    if len(start) > len(axes) or tuple(axes[: max(0, len(start) - 1)]) != tuple(start[:-1]):
        return False
    return not start or start[-1].is_prefix_of(axes[len(start) - 1])


def _across_meshes(first: Sharding, second: Sharding, mesh: Mesh) -> Sharding | str:
    own, other = first.inlined_mesh or mesh, second.inlined_mesh or mesh
    is_final = first.is_fully_closed and second.is_fully_closed
    if is_final and is_equivalent(first, own, second, other):
        return first
    return "they are on different meshes and put different data on the devices"
