"""Shardings the user pinned: read onto the plan's mesh, checked, and which layouts they admit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from autoshard.errors import ConstraintError
from autoshard.graph.program import Op
from autoshard.layouts import Layout, MeshParts
from autoshard.sharding import AxisRef, DimSharding, Mesh, Sharding, canonicalize, parse_sharding
from autoshard.sharding.sharding import DEFAULT_MESH_NAME


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A sharding asked for, in the planner's terms.

    Args:
        sharding: As asked for, on the plan's mesh.
        where: Names the tensor and who asked, for errors.
        asked: What it cuts for sure.
        is_open: Per dimension, whether more parts may follow.
        banned: Parts that must hold copies.
    """

    sharding: Sharding
    where: str
    asked: Layout
    is_open: tuple[bool, ...]
    banned: frozenset[int]

    def admits(self, layout: Layout) -> bool:
        """Whether a tensor may end in `layout`."""
        if self.banned and self.banned.intersection(p for dim in layout for p in dim):
            return False
        return all(
            have[: len(want)] == want if is_open else have == want
            for have, want, is_open in zip(layout, self.asked, self.is_open, strict=True)
        )

    def extended(self, parts: MeshParts, layout: Layout, shape: Sequence[int]) -> Layout | None:
        """The asked layout with its open dimensions cut further as in `layout`; None: not even."""
        taken = {part for dim in self.asked for part in dim}
        found = tuple(
            (*want, *(part for part in have if part not in taken)) if is_open else want
            for have, want, is_open in zip(layout, self.asked, self.is_open, strict=True)
        )
        divides = all(
            size % parts.num_shards(dim) == 0 for dim, size in zip(found, shape, strict=True)
        )
        return found if divides and self.admits(found) else None


def read_pin(sharding: Sharding, parts: MeshParts, shape: Sequence[int], where: str) -> Pin:
    """A user's sharding of a tensor as a pin.

    Raises:
        ConstraintError: It is on another mesh, names an axis the mesh lacks, uses one twice, has
            another number of dimensions than the tensor, or does not divide it.
    """
    check_pinned(sharding, parts.mesh, shape, where)
    return Pin(
        sharding=sharding,
        where=where,
        asked=parts.to_layout(sharding),
        is_open=tuple(dim.is_open for dim in sharding.dims),
        banned=frozenset(p for ref in sharding.replicated for p in parts.parts_of(ref)),
    )


def constraint_sharding(op: Op, mesh: Mesh) -> tuple[Sharding, str]:
    """The sharding a CONSTRAINT op holds, on the plan's mesh, and where it was written.

    Raises:
        ConstraintError: It is on another mesh.
    """
    where = f"sharding constraint at {op.source or 'unknown line'}"
    return on_mesh(parse_sharding(op.pinned), mesh, where), where


def on_mesh(sharding: Sharding, mesh: Mesh, where: str) -> Sharding:
    """A sharding that carries a mesh of its own, said on the plan's mesh.

    A sharding that only names its mesh is taken to be on the plan's, and so is one on a mesh
    without axes (JAX writes those for keys). One on a mesh that splits axes of the plan's in place
    becomes one of sub-axes.

    Raises:
        ConstraintError: Its mesh is another one.
    """
    own = sharding.inlined_mesh
    if own is None or not own.axes or own.axes == mesh.axes:
        return replace(sharding, inlined_mesh=None, mesh_name=DEFAULT_MESH_NAME)
    refs = _as_parts_of(mesh, [(axis.name, axis.size) for axis in own.axes])
    if refs is None:
        raise ConstraintError(
            f"the sharding is on {own}, the plan is for {mesh}",
            where=where,
            fix="use one mesh for both, or split its axes in place",
        )
    return canonicalize(
        Sharding(
            tuple(DimSharding(_within(refs, dim.axes), dim.is_open) for dim in sharding.dims),
            _within(refs, sharding.replicated),
            _within(refs, sharding.unreduced),
        ),
        mesh,
    )


def _within(refs: dict[str, AxisRef], axes: Sequence[AxisRef]) -> tuple[AxisRef, ...]:
    """Axes of the finer mesh, or parts of them, as parts of axes of the plan's."""
    found = []
    for ref in axes:
        outer = refs.get(ref.name)
        if outer is None:  # an axis of size 1
            continue
        is_whole = ref.size is None
        found.append(
            outer if is_whole else AxisRef(outer.name, outer.pre_size * ref.pre_size, ref.size)
        )
    return tuple(found)


def _as_parts_of(mesh: Mesh, axes: list[tuple[str, int]]) -> dict[str, AxisRef] | None:
    """Each axis of a finer mesh as the axis or sub-axis of `mesh` it is; None where it is none.

    Axes of size 1 are left out.
    """
    left = [axis for axis in axes if axis[1] > 1]
    found = {}
    for axis in mesh.axes:
        done = 1
        while left and done < axis.size and axis.size % (done * left[0][1]) == 0:
            name, size = left.pop(0)
            found[name] = AxisRef(axis.name, done, size).canonical(mesh)
            done *= size
        if done != axis.size:
            return None
    return None if left else found


def check_pinned(sharding: Sharding, mesh: Mesh, shape: Sequence[int], where: str) -> None:
    """Refuse a sharding that its tensor or the mesh does not admit.

    Raises:
        ConstraintError: Says which dimension or axis is wrong.
    """
    if len(sharding.dims) != len(shape):
        raise ConstraintError(
            f"the sharding has {len(sharding.dims)} dimensions, the tensor has {len(shape)}",
            where=where,
            fix="give one dimension sharding per tensor dimension",
        )
    if sharding.unreduced:
        axes = ", ".join(str(ref) for ref in sharding.unreduced)
        raise ConstraintError(
            f"the sharding leaves a sum over {axes} to be taken, which no plan does",
            where=where,
            fix="ask for the reduced tensor",
        )
    seen: list[AxisRef] = []
    for ref in sharding.axis_refs():
        if ref.name not in mesh.sizes:
            raise ConstraintError(
                f'the sharding uses axis "{ref.name}", which the mesh does not have',
                where=where,
                fix=f"use one of {', '.join(mesh.axis_names)}, or add it to the mesh",
            )
        if any(ref.overlaps(other) for other in seen):
            raise ConstraintError(
                f"the sharding uses axis {ref} twice",
                where=where,
                fix="an axis cuts one dimension of a tensor at most",
            )
        seen.append(ref)
    for dim, (dim_sharding, size) in enumerate(zip(sharding.dims, shape, strict=True)):
        shards = 1
        for ref in dim_sharding.axes:
            shards *= ref.size_on(mesh)
        if size % shards:
            raise ConstraintError(
                f"dimension {dim} has size {size}, which {shards} shards do not divide",
                where=where,
                fix=f"pad it to {-(-size // shards) * shards}, or cut another dimension",
            )
