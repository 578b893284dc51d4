"""Shardings written on another mesh than the plan's, over the same devices.

Where the plan's axes can say the same, they do: the sharding becomes one on the plan's mesh. Where
they cannot, it stays on its own mesh, closed, and data is permuted on the way in and out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from autoshard.errors import ConstraintError, ShardingError
from autoshard.graph.program import Graph, Op, OpKind
from autoshard.sharding import (
    AxisRef,
    DimSharding,
    Mesh,
    Sharding,
    axes_cutting,
    parse_sharding,
    translate_sharding,
)
from autoshard.sharding.sharding import DEFAULT_MESH_NAME
from autoshard.wishes.wishes import Wishes


def constraint_sharding(op: Op, mesh: Mesh) -> tuple[Sharding, str]:
    """The sharding a CONSTRAINT op holds, as `on_mesh` says it, and where it was written.

    Raises:
        ConstraintError: It is on other devices.
    """
    where = f"sharding constraint at {op.source or 'unknown line'}"
    sharding = parse_sharding(op.pinned)
    if sharding.inlined_mesh is not None and sharding.inlined_mesh.is_empty:  # JAX's own, for keys
        sharding = replace(sharding, inlined_mesh=None, mesh_name=DEFAULT_MESH_NAME)
    return on_mesh(sharding, mesh, where), where


def on_mesh(sharding: Sharding, mesh: Mesh, where: str) -> Sharding:
    """A sharding that carries a mesh of its own, said on the plan's mesh where that is possible.

    A sharding that only names its mesh is taken to be on the plan's. What the axes of the plan's
    mesh cannot say, because the other mesh has its devices in another order, stays on its own mesh
    with every dimension closed.

    Args:
        sharding: The device ids of a mesh it carries are places in the plan's device order.
        mesh: The plan's.
        where: Names the tensor and who asked, for errors.

    Raises:
        ConstraintError: Its mesh is empty or one device alone, has another number of devices, or
            lacks an axis that the sharding uses.
    """
    own = sharding.inlined_mesh
    plain = Mesh(mesh.axes)  # ids count places in its order
    if own is None or own == plain:
        return replace(sharding, inlined_mesh=None, mesh_name=DEFAULT_MESH_NAME)
    if own.is_empty:
        raise ConstraintError(
            "the sharding is on an empty mesh, which says nothing about devices",
            where=where,
            fix=f"write it on {mesh} or another mesh over its devices, or leave it out",
        )
    if own.is_maximal:
        raise ConstraintError(
            f"the sharding puts the whole tensor on device {own.device_order[0]} alone, which a"
            " plan cannot",
            where=where,
            fix="replicate it, closed with no axes, so that every device holds it; or move it to"
            " one device outside of the program",
        )
    if own.num_devices != mesh.num_devices:
        raise ConstraintError(
            f"the sharding is on {own} of {own.num_devices} devices, the plan is for {mesh} of"
            f" {mesh.num_devices}",
            where=where,
            fix="use meshes over the same devices",
        )
    try:
        found = translate_sharding(sharding, own, plain)
    except ShardingError as error:
        raise ConstraintError(error.what, where=where, fix=error.fix) from error
    if found is not None:
        return found
    closed = (
        DimSharding(dim.axes, priority=dim.priority if dim.axes else None) for dim in sharding.dims
    )
    return replace(sharding, dims=tuple(closed), replicated=())


def asked_shardings(graph: Graph, wishes: Wishes, mesh: Mesh) -> Iterator[Sharding]:
    """Every sharding the user wrote, in wishes and in the program, as `on_mesh` says it.

    Raises:
        ConstraintError: One is on other devices.
    """
    for sharding in wishes.shardings():
        yield on_mesh(sharding, mesh, "in_shardings, out_shardings and constraints")
    for op in graph.ops:
        if op.kind is OpKind.CONSTRAINT:
            yield constraint_sharding(op, mesh)[0]
        elif op.kind in (OpKind.ENTER_MANUAL, OpKind.LEAVE_MANUAL):
            yield on_mesh(parse_sharding(op.pinned), mesh, f"shard_map at {op.source}")


def carried_on_other_meshes(wishes: Wishes, mesh: Mesh) -> Wishes:
    """Wishes in which an argument on another mesh and the result that replaces it are both there.

    No op makes a tensor on another mesh by itself, so the end nobody asked about has to be told.
    """
    arguments, results = list(wishes.arguments), list(wishes.results)
    for argument, result in wishes.alike:
        for asked, other, place, other_place in (
            (arguments, results, argument, result),
            (results, arguments, result, argument),
        ):
            found = asked[place]
            if found is None or other[other_place] is not None:
                continue
            if on_mesh(found, mesh, "in_shardings and out_shardings").inlined_mesh is not None:
                other[other_place] = found
    return replace(wishes, arguments=arguments, results=results)


def written_refs(shardings: Sequence[Sharding], mesh: Mesh) -> Iterator[AxisRef]:
    """Axes of the plan's mesh that shardings, as `on_mesh` says them, need as parts.

    Of one that stays on its own mesh, those of a layout with as many pieces in every dimension:
    from there data gets to it in one step.
    """
    needed: list[AxisRef] = []
    for sharding in shardings:
        if sharding.inlined_mesh is None:
            needed += sharding.axis_refs()
    yield from needed
    for sharding in shardings:
        if sharding.inlined_mesh is not None:
            counts = [
                prod(ref.size_on(sharding.inlined_mesh) for ref in dim.axes)
                for dim in sharding.dims
            ]
            twin = axes_cutting(counts, mesh) or ()
            refs = [ref for axes in twin for ref in axes]
            if all(ref.coexists_with(other) for ref in refs for other in needed):
                needed += refs
                yield from refs


def check_pinned(sharding: Sharding, mesh: Mesh, shape: Sequence[int], where: str) -> None:
    """Refuse a sharding that its tensor or the mesh does not admit.

    Args:
        sharding: On its own mesh where it carries one.
        mesh: The mesh of one that carries none.
        shape: Of the tensor.
        where: Names the tensor and who asked.

    Raises:
        ConstraintError: Says which dimension or axis is wrong.
    """
    found = misfit(sharding, mesh, shape)
    if found is not None:
        what, fix = found
        raise ConstraintError(what, where=where, fix=fix)


def misfit(sharding: Sharding, mesh: Mesh, shape: Sequence[int]) -> tuple[str, str] | None:
    """The first reason why a plan cannot shard a tensor so, and what to do; None if it can."""
    mesh = sharding.inlined_mesh or mesh
    if len(sharding.dims) != len(shape):
        return (
            f"the sharding has {len(sharding.dims)} dimensions, the tensor has {len(shape)}",
            "give one dimension sharding per tensor dimension",
        )
    if sharding.unreduced:
        axes = ", ".join(str(ref) for ref in sharding.unreduced)
        return (
            f"the sharding leaves a sum over {axes} to be taken, which no plan does",
            "ask for the reduced tensor",
        )
    seen: list[AxisRef] = []
    for ref in sharding.axis_refs():
        if ref.name not in mesh.sizes:
            return (
                f'the sharding uses axis "{ref.name}", which the mesh does not have',
                f"use one of {', '.join(mesh.axis_names)}, or add it to the mesh",
            )
        if any(ref.overlaps(other) for other in seen):
            return (
                f"the sharding uses axis {ref} twice",
                "an axis cuts one dimension of a tensor at most",
            )
        end = ref.pre_size * ref.size_on(mesh)
        if mesh.sizes[ref.name] % end:
            return (
                f"the sharding uses {ref}, and {ref.pre_size} * {ref.size} = {end} does not divide"
                f" the size {mesh.sizes[ref.name]} of the axis",
                'write a part as "x":(size before it)its size, both dividing the axis together',
            )
        seen.append(ref)
    for index, dim in enumerate(sharding.dims):
        if dim.priority is not None and dim.is_closed and not dim.axes:
            return (
                f"dimension {index} is empty and closed, so its priority p{dim.priority} has"
                " nothing to order",
                f"leave the priority out, or open the dimension: {{?}}p{dim.priority}",
            )
    for index, (dim, size) in enumerate(zip(sharding.dims, shape, strict=True)):
        shards = prod(ref.size_on(mesh) for ref in dim.axes)
        if size % shards:
            return (
                f"dimension {index} has size {size}, which {shards} shards do not divide",
                f"pad it to {-(-size // shards) * shards}, or shard another dimension",
            )
    return None
