"""What the border of a manual computation must hold, and putting it in its full form."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace

from autoshard.errors import ShardingError
from autoshard.sharding.axes import AxisRef
from autoshard.sharding.canonical import merge_axes
from autoshard.sharding.layout import unused_axes
from autoshard.sharding.manual import ManualComputation, ManualRegion, ManualShapes, Shape
from autoshard.sharding.mesh import Mesh
from autoshard.sharding.sharding import DimSharding, Sharding
from autoshard.sharding.verify import in_mesh_order, resolve_mesh, verify_sharding


def verify_manual_computation(
    manual: ManualComputation,
    meshes: Mapping[str, Mesh],
    shapes: ManualShapes | None = None,
    *,
    outer_manual_axes: Collection[str] = (),
    strict: bool = False,
) -> list[str]:
    """Every rule of manual computations that `manual` breaks.

    * All shardings are on one mesh, or on an empty one; the manual axes are axes of that mesh.
    * In each dimension the manual axes come before the free ones.
    * No axis is bound that a manual computation around this one has bound.
    * There is one sound sharding for each operand and each result.
    * The manual axes divide each dimension they cut, and the region's shapes are the local ones.

    The documents of Shardy ask for two more things, which its verifier lets pass and
    `make_manual_axes_explicit` puts right; `strict` asks for them too:

    * The manual axes are in mesh order, each once.
    * Each sharding names all of every manual axis: in a dimension, replicated or unreduced.

    Args:
        manual: What to check.
        meshes: The meshes its shardings name.
        shapes: Shapes outside and inside; left out, nothing about them is checked.
        outer_manual_axes: Axes bound by the manual computations around this one.
        strict: Whether to check the last two rules.

    Returns:
        One sentence per violation, none when the border is sound.
    """
    violations = verify_nesting(manual, outer_manual_axes)
    shardings = [
        *((f"operand {i}", sharding) for i, sharding in enumerate(manual.in_shardings)),
        *((f"result {i}", sharding) for i, sharding in enumerate(manual.out_shardings)),
    ]
    located: list[tuple[str, Sharding, Mesh]] = []
    for place, sharding in shardings:
        try:
            located.append((place, sharding, resolve_mesh(sharding, meshes)))
        except ShardingError as error:
            violations.append(f"{place}: {error.what}")
    violations += _verify_mesh_of_axes(manual.manual_axes, located, strict=strict)
    for place, sharding, mesh in located:
        violations += _verify_axis_order(place, sharding, manual.manual_axes)
        if strict:
            violations += _verify_all_used(place, sharding, mesh, manual.manual_axes)
        if shapes is None:
            violations += _prefixed(
                place, verify_sharding(sharding, mesh, manual_axes=outer_manual_axes)
            )
    if shapes is not None:
        mesh_by_place = {place: mesh for place, _, mesh in located}
        violations += _verify_values(
            "operand",
            manual.in_shardings,
            shapes.operands,
            shapes.local_operands,
            mesh_by_place,
            manual.manual_axes,
            outer_manual_axes,
        )
        violations += _verify_values(
            "result",
            manual.out_shardings,
            shapes.results,
            shapes.local_results,
            mesh_by_place,
            manual.manual_axes,
            outer_manual_axes,
        )
    return violations


def verify_nesting(manual: ManualComputation, outer_manual_axes: Collection[str]) -> list[str]:
    """That a nested manual computation binds no axis that one around it has bound.

    Returns:
        One sentence for each axis bound again.
    """
    return [
        f'axis "{name}" is already manual in a manual computation around this one'
        for name in manual.manual_axes
        if name in outer_manual_axes
    ]


def verify_manual_region(
    region: ManualRegion,
    meshes: Mapping[str, Mesh],
    *,
    outer_manual_axes: Collection[str] = (),
    strict: bool = False,
) -> list[str]:
    """Every rule that a manual computation, or anything in its region, breaks.

    Inside, no sharding uses an axis that is manual there, and no nested manual computation binds
    one. The shapes of values are not looked at.

    Args:
        region: What `find_manual_regions` returns.
        meshes: The meshes its shardings name.
        outer_manual_axes: Axes bound by the manual computations around this one.
        strict: As in `verify_manual_computation`.

    Returns:
        One sentence per violation; of what is inside, it says which sharding or region.
    """
    manual = region.computation
    violations = verify_manual_computation(
        manual, meshes, outer_manual_axes=outer_manual_axes, strict=strict
    )
    bound = {*outer_manual_axes, *manual.manual_axes}
    for index, sharding in enumerate(region.shardings):
        try:
            mesh = resolve_mesh(sharding, meshes)
            found = verify_sharding(sharding, mesh, manual_axes=bound)
        except ShardingError as error:
            found = [error.what]
        violations += _prefixed(f"sharding {index} inside", found)
    for index, nested in enumerate(region.nested):
        found = verify_manual_region(nested, meshes, outer_manual_axes=bound, strict=strict)
        violations += _prefixed(f"region {index} inside", found)
    return violations


def make_manual_axes_explicit(
    manual: ManualComputation, meshes: Mapping[str, Mesh]
) -> ManualComputation:
    """The same computation, with its manual axes in mesh order and named by every sharding.

    What a sharding does not name of a manual axis is copied along it, so it becomes replicated.
    Shardings on an empty mesh stay as they are.

    Raises:
        ShardingError: A mesh or an axis is not known.
    """
    names = manual.manual_axes

    def explicit(sharding: Sharding) -> Sharding:
        mesh = resolve_mesh(sharding, meshes)
        if not mesh.axes:
            return sharding
        missing = _unnamed_parts(sharding, mesh, names)
        replicated = in_mesh_order([*sharding.replicated, *missing], mesh)
        return replace(sharding, replicated=merge_axes(replicated, mesh))

    shardings = (*manual.in_shardings, *manual.out_shardings)
    for mesh in (resolve_mesh(sharding, meshes) for sharding in shardings):
        if mesh.axes:
            names = tuple(dict.fromkeys(sorted(names, key=mesh.axis_index)))
            break
    return ManualComputation(
        tuple(map(explicit, manual.in_shardings)),
        tuple(map(explicit, manual.out_shardings)),
        names,
    )


def manual_local_shape(
    sharding: Sharding, mesh: Mesh, manual_axes: Collection[str], shape: Shape
) -> Shape:
    """Shape inside a manual computation of a value at its border.

    Args:
        sharding: The value's sharding at the border.
        mesh: Its mesh.
        manual_axes: The axes the computation is manual on; only these make the shape smaller.
        shape: Outside.

    Raises:
        ShardingError: The ranks differ, the mesh lacks an axis, or the manual axes do not divide
            a dimension, since a region written for one device cannot be given padding.
    """
    if shape is None:
        return None
    if len(shape) != len(sharding.dims):
        raise ShardingError(
            f"the sharding has rank {len(sharding.dims)} and the tensor has rank {len(shape)}",
            fix="give the sharding one {...} for each dimension",
        )
    local: list[int | None] = []
    for index, (size, dim) in enumerate(zip(shape, sharding.dims, strict=True)):
        pieces = _manual_shards(dim, mesh, manual_axes)
        if size is not None and size % pieces:
            raise ShardingError(
                f"dimension {index} has size {size}, which the {pieces} pieces along the manual "
                "axes do not divide",
                fix="pad the tensor, or shard another dimension",
            )
        local.append(None if size is None else size // pieces)
    return tuple(local)


def _manual_shards(dim: DimSharding, mesh: Mesh, manual_axes: Collection[str]) -> int:
    return math.prod(axis.size_on(mesh) for axis in dim.axes if axis.name in manual_axes)


def _verify_mesh_of_axes(
    names: tuple[str, ...], located: list[tuple[str, Sharding, Mesh]], *, strict: bool
) -> list[str]:
    """One mesh for all, and the manual axes in it."""
    if not names or not located:
        return []
    place, _, mesh = next((item for item in located if not item[2].is_empty), located[0])
    for other_place, _, other in located:
        if not other.is_empty and other != mesh:
            return [
                f"all shardings are on one mesh, and {place} is on {mesh}, {other_place} on {other}"
            ]
    unknown = [name for name in names if name not in mesh.sizes]
    if unknown:
        return [f'manual axis "{name}" is not an axis of the {mesh}' for name in unknown]
    ordered = tuple(dict.fromkeys(sorted(names, key=mesh.axis_index)))
    if strict and ordered != names:
        return [
            "manual axes are in the order of the mesh, each once: "
            f"{', '.join(ordered)}, found {', '.join(names)}"
        ]
    return []


def _verify_axis_order(place: str, sharding: Sharding, manual_axes: Collection[str]) -> list[str]:
    violations = []
    for index, dim in enumerate(sharding.dims):
        free: AxisRef | None = None
        for axis in dim.axes:
            if axis.name not in manual_axes:
                free = axis
            elif free is not None:
                violations.append(
                    f"{place}: in dimension {index} the manual axis {axis} comes after "
                    f"the free axis {free}; manual axes come first"
                )
                break
    return violations


def _verify_all_used(
    place: str, sharding: Sharding, mesh: Mesh, manual_axes: Collection[str]
) -> list[str]:
    if not mesh.axes:
        return []
    try:
        missing = _unnamed_parts(sharding, mesh, manual_axes)
    except ShardingError:
        return []  # the axes themselves are unsound, which verify_sharding names
    return [
        f"{place}: the manual axis {axis} is neither in a dimension nor replicated"
        for axis in missing
    ]


def _unnamed_parts(sharding: Sharding, mesh: Mesh, manual_axes: Collection[str]) -> list[AxisRef]:
    unused = unused_axes(sharding.axis_refs(), mesh)
    return [axis for axis in unused if axis.name in manual_axes]


def _verify_values(
    kind: str,
    shardings: tuple[Sharding, ...],
    shapes: tuple[Shape, ...],
    local_shapes: tuple[Shape, ...],
    mesh_by_place: Mapping[str, Mesh],
    manual_axes: Collection[str],
    outer_manual_axes: Collection[str],
) -> list[str]:
    violations = []
    if not shapes and len(shardings) == 1 and _is_bare(shardings[0]):
        shardings = ()  # Shardy lets one bare sharding stand where there is no value
    if len(shardings) != len(shapes):
        violations.append(f"there are {len(shardings)} {kind} shardings for {len(shapes)} {kind}s")
    if len(local_shapes) != len(shapes):
        violations.append(f"there are {len(shapes)} {kind}s outside, {len(local_shapes)} inside")
    if violations:
        return violations
    for index, sharding in enumerate(shardings):
        place = f"{kind} {index}"
        mesh = mesh_by_place.get(place)
        if mesh is None:
            continue
        shape = shapes[index]
        found = verify_sharding(
            sharding,
            mesh,
            shape,
            is_tensor=shape is not None,
            manual_axes=outer_manual_axes,
        )
        if not found and shape is not None and not mesh.is_maximal:
            try:
                expected = manual_local_shape(sharding, mesh, manual_axes, shape)
                if expected != local_shapes[index]:
                    found = [
                        f"the local shape is {_shape_text(expected)}, and the region has "
                        f"{_shape_text(local_shapes[index])}"
                    ]
            except ShardingError as error:
                found = [error.what]
        violations += _prefixed(place, found)
    return violations


def _is_bare(sharding: Sharding) -> bool:
    return not (sharding.dims or sharding.replicated or sharding.unreduced)


def _prefixed(place: str, violations: list[str]) -> list[str]:
    return [f"{place}: {violation}" for violation in violations]


def _shape_text(shape: Shape) -> str:
    if shape is None:
        return "none"
    return f"[{', '.join('?' if size is None else str(size) for size in shape)}]"
