"""Splitting a mesh further, so that every sub-axis in use becomes an axis with a name."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import replace

from autoshard.errors import ShardingError
from autoshard.sharding.axes import AxisRef
from autoshard.sharding.mesh import Mesh, MeshAxis
from autoshard.sharding.sharding import DEFAULT_MESH_NAME, DimSharding, Sharding


def refine_mesh(
    mesh: Mesh, axis_refs: Iterable[AxisRef]
) -> tuple[Mesh, dict[AxisRef, tuple[str, ...]]]:
    """Split the axes of a mesh where the given sub-axes begin and end.

    The devices stay where they are: only the grid gets more directions. An axis that is split
    becomes `name_0, name_1, ...`, major to minor; where such a name is taken, more underscores
    stand before the number. Axes nobody cuts keep their name.

    Args:
        mesh: The mesh to split.
        axis_refs: Whole axes and sub-axes that must have names.

    Returns:
        The split mesh, and for each of `axis_refs` and each whole axis of `mesh` the axes of the
        split mesh that it is, major to minor. Axes of size 1 are kept.

    Raises:
        ShardingError: The mesh lacks an axis, a sub-axis does not divide its axis, or two
            sub-axes cannot be cut from one splitting.
    """
    wanted = list(dict.fromkeys(axis_refs))
    cuts: dict[str, set[int]] = {axis.name: {1, axis.size} for axis in mesh.axes}
    for axis in wanted:
        axis_size = mesh.axis_size(axis.name)
        if axis.size is None:
            continue
        end = axis.pre_size * axis.size
        if axis_size % end:
            raise ShardingError(
                f"{axis} ends at {end}, which does not divide the axis size {axis_size}",
                where=str(mesh),
                fix="choose a pre-size and a size whose product divides the axis size",
            )
        cuts[axis.name] |= {axis.pre_size, end}
    parts_by_name = {name: _parts(name, ends, wanted, mesh) for name, ends in cuts.items()}
    taken = {name for name, parts in parts_by_name.items() if len(parts) == 1}
    axes: list[MeshAxis] = []
    name_by_part: dict[AxisRef, str] = {}
    for name, parts in parts_by_name.items():
        names = (name,) if len(parts) == 1 else _fresh_names(name, len(parts), taken | set(cuts))
        taken.update(names)
        for part, new_name in zip(parts, names, strict=True):
            name_by_part[part] = new_name
            axes.append(MeshAxis(new_name, part.size_on(mesh)))
    refined = Mesh(tuple(axes), mesh.device_ids)
    whole = [AxisRef(axis.name) for axis in mesh.axes]
    mapping = {
        axis: tuple(
            name_by_part[part]
            for part in parts_by_name[axis.name]
            if axis.canonical(mesh).contains(part)
        )
        for axis in [*whole, *wanted]
    }
    return refined, mapping


def refine_sharding(
    sharding: Sharding,
    names: Mapping[AxisRef, tuple[str, ...]],
    *,
    mesh_name: str = DEFAULT_MESH_NAME,
) -> Sharding:
    """The same sharding on a refined mesh, without sub-axes.

    Args:
        sharding: A sharding on the mesh that was refined.
        names: What `refine_mesh` returned, given every axis of the sharding.
        mesh_name: The refined mesh's name.

    Raises:
        ShardingError: An axis of the sharding was not given to `refine_mesh`.
    """

    def renamed(axes: tuple[AxisRef, ...]) -> tuple[AxisRef, ...]:
        refined = []
        for axis in axes:
            if axis not in names:
                raise ShardingError(
                    f"{axis} has no axes in the refined mesh",
                    fix="give every axis of the sharding to refine_mesh",
                )
            refined += [AxisRef(name) for name in names[axis]]
        return tuple(refined)

    return replace(
        sharding,
        dims=tuple(
            DimSharding(renamed(dim.axes), dim.is_open, dim.priority) for dim in sharding.dims
        ),
        replicated=renamed(sharding.replicated),
        unreduced=renamed(sharding.unreduced),
        mesh_name=mesh_name,
        inlined_mesh=None,
    )


def _parts(name: str, ends: set[int], wanted: list[AxisRef], mesh: Mesh) -> list[AxisRef]:
    ordered = sorted(ends)
    if len(ordered) <= 2:
        return [AxisRef(name)]
    parts = []
    for start, end in itertools.pairwise(ordered):
        if end % start:
            users = ", ".join(str(axis) for axis in wanted if axis.name == name)
            raise ShardingError(
                f"no splitting of an axis of size {mesh.axis_size(name)} holds all of {users}",
                where=str(mesh),
                fix="use sub-axes whose pre-sizes divide one another",
            )
        parts.append(AxisRef(name, start, end // start))
    return parts


def _fresh_names(name: str, count: int, taken: set[str]) -> tuple[str, ...]:
    underscores = "_"
    while True:
        names = tuple(f"{name}{underscores}{index}" for index in range(count))
        if taken.isdisjoint(names):
            return names
        underscores += "_"
