"""What a mesh and a sharding must hold: every violation at once, in the user's words."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from autoshard.errors import ShardingError
from autoshard.sharding.axes import AxisRef
from autoshard.sharding.mesh import Mesh
from autoshard.sharding.mesh_printer import format_mesh
from autoshard.sharding.printer import format_sharding
from autoshard.sharding.sharding import Sharding


def verify_mesh(mesh: Mesh) -> list[str]:
    """Every rule of meshes that `mesh` breaks.

    * Axis names differ from one another.
    * Device ids are not negative.
    * There are as many device ids as devices; without axes, exactly one.
    * With axes, the device ids are `0, 1, ..., num_devices - 1` in some order.

    Returns:
        One sentence per violation, none when the mesh is sound.
    """
    violations = []
    seen: set[str] = set()
    for axis in mesh.axes:
        if axis.name in seen:
            violations.append(f'two axes of the mesh are called "{axis.name}"')
        seen.add(axis.name)
    device_ids = mesh.device_ids
    if device_ids is None:
        return violations
    negative = sorted({device_id for device_id in device_ids if device_id < 0})
    if negative:
        violations.append(f"device ids are not negative, found {_listed(negative)}")
    if not mesh.axes:
        if len(device_ids) != 1:
            violations.append(
                f"a mesh without axes names one device, and this one names {len(device_ids)}"
            )
    elif len(device_ids) != mesh.num_devices:
        violations.append(
            f"the axis sizes multiply to {mesh.num_devices} devices, "
            f"and there are {len(device_ids)} device ids"
        )
    elif not negative and sorted(device_ids) != list(range(mesh.num_devices)):
        missing = sorted(set(range(mesh.num_devices)) - set(device_ids))
        violations.append(
            f"the device ids are 0 to {mesh.num_devices - 1} in some order, "
            f"and {_listed(missing)} {'is' if len(missing) == 1 else 'are'} missing"
        )
    return violations


def verify_sharding(
    sharding: Sharding,
    mesh: Mesh,
    shape: Sequence[int | None] | None = None,
    *,
    is_tensor: bool = True,
    manual_axes: Collection[str] = (),
) -> list[str]:
    """Every rule of shardings that `sharding` breaks on `mesh`.

    The rules are those of Shardy's documents and of its verifier. A dimension need not be
    divisible by its number of shards: it is padded.

    Args:
        sharding: What to check.
        mesh: The mesh it names; an inlined mesh is taken, and checked, instead.
        shape: int[rank] of the tensor, None for sizes not known; left out, any rank will do.
        is_tensor: False for a token or another value without a shape.
        manual_axes: Axes that manual computations around the value have bound.

    Returns:
        One sentence per violation, none when the sharding is sound.
    """
    violations = []
    if sharding.inlined_mesh is not None:
        mesh = sharding.inlined_mesh
        violations += verify_mesh(mesh)
    if mesh.is_maximal or not is_tensor:
        if sharding.dims or sharding.replicated or sharding.unreduced:
            kind = "on a single device" if mesh.is_maximal else "of a value that is not a tensor"
            violations.append(f"a sharding {kind} has no dimensions and no axes: write it []")
        return violations
    if shape is not None and len(shape) != len(sharding.dims):
        violations.append(
            f"the sharding has {_counted(len(sharding.dims), 'dimension')} "
            f"and the tensor has {len(shape)}"
        )
    for index, dim in enumerate(sharding.dims):
        if dim.priority is not None and not dim.axes and not dim.is_open:
            violations.append(
                f"dimension {index} is empty and closed, so its priority "
                f"p{dim.priority} has nothing to order"
            )
    uses_by_name, axis_violations = _verify_axis_lists(sharding, mesh)
    violations += axis_violations
    for name, uses in uses_by_name.items():
        if len(uses) > 1 or uses[0][0].size is not None:
            violations += _verify_uses_of_one_axis(
                [(axis, _place(index, sharding)) for axis, index in uses], mesh.sizes[name]
            )
    if manual_axes:
        violations += verify_free_axes(sharding, manual_axes)
    if len(sharding.replicated) > 1:
        violations += _verify_order("replicated", sharding.replicated, mesh)
    if len(sharding.unreduced) > 1:
        violations += _verify_order("unreduced", sharding.unreduced, mesh)
    return violations


def verify_free_axes(sharding: Sharding, manual_axes: Collection[str]) -> list[str]:
    """That a sharding inside manual computations uses none of the axes they have bound.

    Along those axes the value is one device's piece already. Replicated and unreduced axes count
    as used. `verify_sharding` asks this too, given the manual axes.

    Returns:
        One sentence for each bound axis that is used.
    """
    places: dict[str, str] = {}
    lists = [*(dim.axes for dim in sharding.dims), sharding.replicated, sharding.unreduced]
    for index, axes in enumerate(lists):
        for axis in axes:
            if axis.name in manual_axes:
                places.setdefault(axis.name, _place(index, sharding))
    return [
        f'{place} uses axis "{name}", which a manual computation around it has bound'
        for name, place in places.items()
    ]


def check_mesh(mesh: Mesh) -> None:
    """Refuse a mesh that breaks a rule.

    Raises:
        ShardingError: With every violation that `verify_mesh` finds.
    """
    violations = verify_mesh(mesh)
    if violations:
        raise ShardingError(
            "\n".join(violations),
            where=format_mesh(mesh),
            fix="correct the mesh",
        )


def check_sharding(
    sharding: Sharding,
    mesh: Mesh,
    shape: Sequence[int | None] | None = None,
    *,
    where: str = "",
) -> None:
    """Refuse a sharding that breaks a rule.

    Args:
        sharding: As in `verify_sharding`.
        mesh: As in `verify_sharding`.
        shape: As in `verify_sharding`.
        where: The argument, file or operation the sharding belongs to, for the message.

    Raises:
        ShardingError: With every violation that `verify_sharding` finds.
    """
    violations = verify_sharding(sharding, mesh, shape)
    if violations:
        text = format_sharding(sharding)
        raise ShardingError(
            "\n".join(violations),
            where=f"{where}: {text}" if where else text,
            fix=f"correct the sharding for the {mesh}",
        )


def resolve_mesh(sharding: Sharding, meshes: Mapping[str, Mesh]) -> Mesh:
    """The mesh a sharding is about: the one it carries, or the one it names.

    Raises:
        ShardingError: No mesh has that name.
    """
    if sharding.inlined_mesh is not None:
        return sharding.inlined_mesh
    try:
        return meshes[sharding.mesh_name]
    except KeyError:
        known = _listed(f'"{name}"' for name in meshes) or "none"
        raise ShardingError(
            f'there is no mesh "{sharding.mesh_name}"; the meshes are: {known}',
            where=format_sharding(sharding),
            fix="name one of these meshes, or define this one",
        ) from None


def _verify_axis_lists(
    sharding: Sharding, mesh: Mesh
) -> tuple[dict[str, list[tuple[AxisRef, int]]], list[str]]:
    """Each list on its own; also the known axes by name, with the place of each use."""
    violations = []
    sizes = mesh.sizes
    uses_by_name: dict[str, list[tuple[AxisRef, int]]] = {}
    lists = [dim.axes for dim in sharding.dims]
    lists += (sharding.replicated, sharding.unreduced)
    for place, axes in enumerate(lists):
        previous: AxisRef | None = None
        for axis in axes:
            name = axis.name
            if name not in sizes:
                names = _listed(f'"{known}"' for known in mesh.axis_names) or "none"
                violations.append(
                    f'{_place(place, sharding)} uses axis "{name}", '
                    f"which the mesh does not have; its axes: {names}"
                )
            elif name in uses_by_name:
                uses_by_name[name].append((axis, place))
            else:
                uses_by_name[name] = [(axis, place)]
            if previous is not None and previous.can_merge(axis):
                violations.append(
                    f"{previous} and {axis} in {_place(place, sharding)} are one sub-axis "
                    f"and are written as one: {_merged(previous, axis, sizes.get(name))}"
                )
            previous = axis
    return uses_by_name, violations


def _place(index: int, sharding: Sharding) -> str:
    """Name of the list of axes with this index: dimensions, then replicated, then unreduced."""
    rank = len(sharding.dims)
    return f"dimension {index}" if index < rank else ("replicated", "unreduced")[index - rank]


def _verify_uses_of_one_axis(uses: list[tuple[AxisRef, str]], axis_size: int) -> list[str]:
    if len(uses) == 1:
        axis, place = uses[0]
        return _verify_sub_axis(axis, place, axis_size)
    violations = []
    distinct: list[tuple[AxisRef, str]] = []
    seen: dict[AxisRef, str] = {}
    for axis, place in uses:
        if axis in seen:
            violations.append(f"{axis} is used twice: in {seen[axis]} and in {place}")
        else:
            seen[axis] = place
            distinct.append((axis, place))
    for axis, place in distinct:
        violations += _verify_sub_axis(axis, place, axis_size)
    parts = sorted(
        (use for use in distinct if use[0].size is not None),
        key=lambda use: (use[0].pre_size, use[0].next_pre_size),
    )
    violations += [
        f"{axis} is used whole in {place}, and in part in {part_place}: {part}"
        for axis, place in distinct
        if axis.size is None
        for part, part_place in parts
    ]
    violations += [
        f"{major} in {major_place} and {minor} in {minor_place} overlap"
        for index, (major, major_place) in enumerate(parts)
        for minor, minor_place in parts[index + 1 :]
        if major.overlaps(minor)
    ]
    return violations


def _verify_sub_axis(axis: AxisRef, place: str, axis_size: int) -> list[str]:
    size = axis.size
    if size is None:
        return []
    if size == 1:
        return [f"{axis} in {place} has size 1, and a sub-axis has size 2 or more: leave it out"]
    end = axis.pre_size * size
    if axis_size % end:
        return [
            f"{axis} in {place} does not fit its axis: "
            f"{axis.pre_size} * {size} = {end} does not divide the axis size {axis_size}"
        ]
    if size == axis_size:
        return [f'{axis} in {place} is the whole axis and is written "{axis.name}"']
    return []


def _verify_order(kind: str, axes: tuple[AxisRef, ...], mesh: Mesh) -> list[str]:
    known = tuple(axis for axis in axes if axis.name in mesh.sizes)
    ordered = in_mesh_order(known, mesh)
    if ordered == known:
        return []
    return [
        f"{kind} axes are in the order of the mesh, sub-axes by pre-size: "
        f"{_listed(map(str, ordered))}, found {_listed(map(str, known))}"
    ]


def in_mesh_order(axes: Iterable[AxisRef], mesh: Mesh) -> tuple[AxisRef, ...]:
    """Sort by place of the axis in the mesh, sub-axes by pre-size, then size; whole axes last.

    Raises:
        ShardingError: The mesh lacks one of the axes.
    """
    return tuple(
        sorted(
            axes,
            key=lambda axis: (
                mesh.axis_index(axis.name),
                axis.size is None,
                axis.pre_size,
                axis.size or 0,
            ),
        )
    )


def _merged(major: AxisRef, minor: AxisRef, axis_size: int | None) -> AxisRef:
    size = (major.size or 1) * (minor.size or 1)
    if major.pre_size == 1 and size == axis_size:
        return AxisRef(major.name)
    return AxisRef(major.name, major.pre_size, size)


def _listed(items: Iterable[object]) -> str:
    return ", ".join(map(str, items))


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
