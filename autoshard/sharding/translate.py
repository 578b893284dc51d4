"""Saying a sharding of one mesh in the axes of another mesh over the same devices.

Nothing depends on names: an axis of one mesh is a part of another where both number the devices
alike. `"z"` of a 2x2x2 mesh is `"b"` of a 4x2 mesh; on devices in transposed order, `"x"` of a 2x4
mesh may be all of axis `"a"`. What no axes can say gives None.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from autoshard.sharding.axes import AxisRef
from autoshard.sharding.canonical import canonicalize
from autoshard.sharding.mesh import Mesh, MeshAxis
from autoshard.sharding.sharding import DEFAULT_MESH_NAME, DimSharding, Sharding

Digits = npt.NDArray[np.int64]
"""int64[num_devices]: a number for each device, in the order of device ids."""


def translate_sharding(
    sharding: Sharding, mesh: Mesh, onto: Mesh, *, mesh_name: str = DEFAULT_MESH_NAME
) -> Sharding | None:
    """A sharding on `mesh` as the one on `onto` that puts the same pieces on the same devices.

    Open dimensions and priorities stay. Axes that must hold copies are said in parts of `onto` too;
    where they cannot be, every dimension is closed, which keeps the word given and more.

    Args:
        sharding: Sound on `mesh`; an inlined mesh is not looked at.
        mesh: The mesh of the sharding; neither empty nor maximal.
        onto: A mesh over the same devices, likewise.
        mesh_name: What the sharding found says its mesh is called.

    Returns:
        Canonical, without an inlined mesh; None where the axes of `onto` cannot say it.

    Raises:
        ShardingError: `mesh` lacks an axis of the sharding, or a sub-axis does not divide its axis.
    """
    if sorted(mesh.device_order) != sorted(onto.device_order):
        return None
    dims = [_as_axes(dim.axes, mesh, onto) for dim in sharding.dims]
    unreduced = _as_axes(sharding.unreduced, mesh, onto)
    if unreduced is None or any(axes is None for axes in dims):
        return None
    copies = [_as_axes((ref,), mesh, onto) for ref in sharding.replicated]
    is_exact = all(axes is not None for axes in copies)
    return canonicalize(
        replace(
            sharding,
            dims=tuple(
                DimSharding(axes or (), dim.is_open and is_exact, dim.priority)
                for axes, dim in zip(dims, sharding.dims, strict=True)
            ),
            replicated=tuple(ref for axes in copies for ref in axes or ()) if is_exact else (),
            unreduced=unreduced,
            mesh_name=mesh_name,
            inlined_mesh=None,
        ),
        onto,
    )


def axes_cutting(num_shards: Sequence[int], mesh: Mesh) -> tuple[tuple[AxisRef, ...], ...] | None:
    """Axes and parts of axes of a mesh that cut dimensions into so many pieces each.

    Args:
        num_shards: Per dimension.
        mesh: Its axes are used up from the most major on, so that data in mesh order moves little.

    Returns:
        Per dimension; None where the mesh cannot cut so.
    """
    used = {axis.name: 1 for axis in mesh.axes}
    found = []
    for wanted in num_shards:
        axes = []
        for axis in mesh.axes:
            size = math.gcd(wanted, axis.size // used[axis.name])
            if size > 1:
                axes.append(AxisRef(axis.name, used[axis.name], size).canonical(mesh))
                used[axis.name] *= size
                wanted //= size
        if wanted > 1:
            return None
        found.append(tuple(axes))
    return tuple(found)


def relative_mesh(axes: Sequence[MeshAxis], devices: Sequence[int], order: Sequence[int]) -> Mesh:
    """A mesh whose device ids are places in the device order of another mesh.

    Args:
        axes: Of the mesh.
        devices: The devices at its row-major places.
        order: The devices at the row-major places of the other mesh: the same ones.
    """
    place = {device: index for index, device in enumerate(order)}
    return Mesh(tuple(axes), tuple(place[device] for device in devices))


def _as_axes(refs: Sequence[AxisRef], mesh: Mesh, onto: Mesh) -> tuple[AxisRef, ...] | None:
    """The axes of `onto` that spell the number which `refs` spell on `mesh`, major to minor."""
    size = math.prod(ref.size_on(mesh) for ref in refs)
    return _spelled(digits(refs, mesh), size, _sub_axes(onto))


def digits(refs: Sequence[AxisRef], mesh: Mesh) -> Digits:
    """int64[num_devices]: by device id, the number that its places along some axes spell.

    Args:
        refs: Major to minor; none spell 0 everywhere.
        mesh: Its devices may have any ids; they are taken in increasing order.

    Raises:
        ShardingError: The mesh lacks an axis, or a sub-axis does not divide its axis.
    """
    place_by_rank = np.argsort(np.asarray(mesh.device_order), kind="stable")
    number = np.zeros(mesh.num_devices, dtype=np.int64)
    for ref in refs:
        index = mesh.axis_index(ref.name)
        size = mesh.axes[index].size
        minor = math.prod(axis.size for axis in mesh.axes[index + 1 :])
        along = np.array([ref.coordinate(place, mesh) for place in range(size)], dtype=np.int64)
        number = number * ref.size_on(mesh) + along[place_by_rank // minor % size]
    return number


@lru_cache(maxsize=64)
def _sub_axes(mesh: Mesh) -> tuple[tuple[AxisRef, int, Digits], ...]:
    """Every axis and sub-axis of a mesh with its size and digits, the largest first."""
    found = []
    for axis in mesh.axes:
        for pre_size in _divisors(axis.size):
            for size in _divisors(axis.size // pre_size):
                if size > 1:
                    ref = AxisRef(axis.name, pre_size, size).canonical(mesh)
                    found.append((ref, size, digits((ref,), mesh)))
    found.sort(key=lambda entry: -entry[1])
    return tuple(found)


def _divisors(number: int) -> Iterator[int]:
    return (divisor for divisor in range(1, number + 1) if number % divisor == 0)


def _spelled(
    number: Digits, size: int, sub_axes: Sequence[tuple[AxisRef, int, Digits]]
) -> tuple[AxisRef, ...] | None:
    """Axes, major to minor, whose digits spell a number below `size`; found from the minor end."""
    if size == 1:
        return ()
    for ref, ref_size, own in sub_axes:
        if size % ref_size == 0 and np.array_equal(number % ref_size, own):
            rest = _spelled(number // ref_size, size // ref_size, sub_axes)
            if rest is not None:
                return (*rest, ref)
    return None
