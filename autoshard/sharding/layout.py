"""Where the pieces of a tensor lie: sizes, devices, and layouts that are the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from autoshard.errors import ShardingError
from autoshard.sharding.axes import AxisRef
from autoshard.sharding.mesh import Mesh
from autoshard.sharding.printer import format_sharding
from autoshard.sharding.sharding import DimSharding, Sharding


def num_shards(dim: DimSharding, mesh: Mesh) -> int:
    """How many pieces a dimension is cut into.

    Raises:
        ShardingError: The mesh lacks one of the axes.
    """
    return math.prod(axis.size_on(mesh) for axis in dim.axes)


def local_shape(sharding: Sharding, mesh: Mesh, shape: Sequence[int]) -> tuple[int, ...]:
    """Shape of one device's piece of a tensor.

    A dimension that its number of pieces does not divide is padded at its end, so the piece is
    the quotient rounded up. On a maximal mesh the one device holds everything.

    Args:
        sharding: Its rank is that of the tensor, or 0 on a maximal mesh.
        mesh: The mesh it names; an inlined mesh is taken instead.
        shape: int[rank], the whole tensor.

    Returns:
        int[rank].

    Raises:
        ShardingError: The ranks differ, or the mesh lacks one of the axes.
    """
    mesh = sharding.inlined_mesh or mesh
    if mesh.is_maximal and not sharding.dims:
        return tuple(shape)
    if len(shape) != len(sharding.dims):
        raise ShardingError(
            f"the sharding has rank {len(sharding.dims)} and the tensor has rank {len(shape)}",
            where=f"{format_sharding(sharding)} for shape {list(shape)}",
            fix="give the sharding one {...} for each dimension",
        )
    return tuple(
        -(-size // num_shards(dim, mesh)) for size, dim in zip(shape, sharding.dims, strict=True)
    )


def padding(sharding: Sharding, mesh: Mesh, shape: Sequence[int]) -> tuple[int, ...]:
    """Elements added at the end of each dimension so that all pieces have one size.

    Args:
        sharding: As in `local_shape`.
        mesh: As in `local_shape`.
        shape: int[rank], the whole tensor.

    Returns:
        int[rank].

    Raises:
        ShardingError: As in `local_shape`.
    """
    mesh = sharding.inlined_mesh or mesh
    local = local_shape(sharding, mesh, shape)
    if mesh.is_maximal:
        return (0,) * len(local)
    return tuple(
        piece * num_shards(dim, mesh) - size
        for piece, size, dim in zip(local, shape, sharding.dims, strict=True)
    )


def device_to_shard(sharding: Sharding, mesh: Mesh) -> dict[int, tuple[int, ...]]:
    """Which piece each device holds.

    Args:
        sharding: Sound on the mesh.
        mesh: The mesh it names; an inlined mesh is taken instead.

    Returns:
        By device id, in increasing order: int[rank], the piece's index along each dimension,
        counted from 0 at the dimension's start. On a maximal mesh, the one device and `()`.

    Raises:
        ShardingError: The mesh lacks one of the axes, or a sub-axis does not divide its axis.
    """
    mesh = sharding.inlined_mesh or mesh
    index_functions = [_mixed_radix(dim.axes, mesh) for dim in sharding.dims]
    pieces = {}
    for place, device_id in enumerate(mesh.device_order):
        pieces[device_id] = tuple(index_of(place) for index_of in index_functions)
    return dict(sorted(pieces.items()))


def shard_slices(
    sharding: Sharding, mesh: Mesh, shape: Sequence[int]
) -> dict[int, tuple[slice, ...]]:
    """Which elements of the whole tensor each device holds, padding left out.

    Args:
        sharding: As in `local_shape`.
        mesh: As in `local_shape`.
        shape: int[rank], the whole tensor.

    Returns:
        By device id, in increasing order: slice[rank] with start and stop; a piece that is all
        padding has them equal.

    Raises:
        ShardingError: As `local_shape` and `device_to_shard`.
    """
    local = local_shape(sharding, mesh, shape)
    pieces = device_to_shard(sharding, mesh)
    return {
        device_id: tuple(
            slice(min(index * piece, size), min((index + 1) * piece, size))
            for index, piece, size in zip(indices or (0,) * len(local), local, shape, strict=True)
        )
        for device_id, indices in pieces.items()
    }


def is_equivalent(
    left: Sharding, left_mesh: Mesh, right: Sharding, right_mesh: Mesh | None = None
) -> bool:
    """Whether two shardings put the same data on the same devices.

    The meshes may have other axes, other names and another order, as when one splits the other:
    `"devices":(1)4` on a mesh of 8 is `"x"` on a mesh of 4x2. Open dimensions, priorities and
    explicit replication say what may happen later and do not count; unreduced axes do.

    Args:
        left: Sound on its mesh.
        left_mesh: The mesh `left` names; an inlined mesh is taken instead.
        right: Sound on its mesh.
        right_mesh: The mesh `right` names; left out, it is `left_mesh`.

    Raises:
        ShardingError: As `device_to_shard`.
    """
    right_mesh = right.inlined_mesh or right_mesh or left_mesh
    left_mesh = left.inlined_mesh or left_mesh
    left_dims, right_dims = left.dims, right.dims
    if left_mesh.is_maximal or right_mesh.is_maximal:
        return left_mesh.device_order == right_mesh.device_order
    if left_mesh.num_devices != right_mesh.num_devices or len(left_dims) != len(right_dims):
        return False
    if any(
        num_shards(left_dim, left_mesh) != num_shards(right_dim, right_mesh)
        for left_dim, right_dim in zip(left_dims, right_dims, strict=True)
    ):
        return False
    return device_to_shard(left, left_mesh) == device_to_shard(right, right_mesh) and _sum_groups(
        left, left_mesh
    ) == _sum_groups(right, right_mesh)


def unused_axes(axes: Iterable[AxisRef], mesh: Mesh) -> tuple[AxisRef, ...]:
    """Everything of a mesh that is not in `axes`, in mesh order.

    Raises:
        ShardingError: The mesh lacks one of the axes, or a sub-axis does not divide its axis or
            does not fit the other sub-axes.
    """
    rest = [AxisRef(axis.name) for axis in mesh.axes]
    for axis in axes:
        mesh.axis_size(axis.name)
        rest = [part for whole in rest for part in whole.difference(axis, mesh)]
    return tuple(rest)


def _mixed_radix(axes: Iterable[AxisRef], mesh: Mesh) -> Callable[[int], int]:
    """From a row-major place in the mesh to the number its coordinates on `axes` spell."""
    digits = []
    for axis in axes:
        minor = math.prod(other.size for other in mesh.axes[mesh.axis_index(axis.name) + 1 :])
        digits.append((axis, minor, mesh.axis_size(axis.name), axis.size_on(mesh)))

    def index_of(place: int) -> int:
        index = 0
        for axis, minor, axis_size, size in digits:
            index = index * size + axis.coordinate(place // minor % axis_size, mesh)
        return index

    return index_of


def _sum_groups(sharding: Sharding, mesh: Mesh) -> frozenset[frozenset[int]]:
    """Sets of devices whose values are terms of one sum; empty when nothing is unreduced."""
    if math.prod(axis.size_on(mesh) for axis in sharding.unreduced) == 1:
        return frozenset()
    rest_of = _mixed_radix(unused_axes(sharding.unreduced, mesh), mesh)
    groups: dict[int, set[int]] = {}
    for place, device_id in enumerate(mesh.device_order):
        groups.setdefault(rest_of(place), set()).add(device_id)
    return frozenset(frozenset(group) for group in groups.values())
