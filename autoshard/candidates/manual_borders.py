"""Borders of shard_map bodies: manual axes cut a tensor as written, free ones as chosen."""

from __future__ import annotations

from dataclasses import replace

from autoshard.candidates.candidate import Candidate
from autoshard.errors import ConstraintError
from autoshard.graph.program import Graph, Op, OpKind, Region
from autoshard.layouts import Layout, MeshParts, Parts
from autoshard.sharding import (
    AxisRef,
    DimSharding,
    Mesh,
    Sharding,
    format_sharding,
    parse_mesh,
    parse_sharding,
)
from autoshard.wishes.other_meshes import on_mesh

_BORDERS = (OpKind.ENTER_MANUAL, OpKind.LEAVE_MANUAL)


def with_borders_on(graph: Graph, mesh: Mesh) -> Graph:
    """The program with the axes of its shard_map bodies said on the plan's mesh.

    An axis of which a body on another mesh takes a part is manual as a whole: its other parts are
    not used inside.

    Raises:
        ConstraintError: A body is on a mesh whose axes are no axes of the plan's mesh.
    """
    if not any(region.kind == "manual" for region in graph.regions):
        return graph
    regions = tuple(
        region if region.kind != "manual" else _region_on(region, mesh) for region in graph.regions
    )
    ops = tuple(
        op if op.kind not in _BORDERS else replace(op, pinned=_pinned_on(op, mesh))
        for op in graph.ops
    )
    return replace(graph, regions=regions, ops=ops)


def _region_on(region: Region, mesh: Mesh) -> Region:
    own = parse_mesh(region.mesh) if region.mesh else mesh
    if own.axes == mesh.axes:
        return region
    axes = Sharding((DimSharding(tuple(map(AxisRef, region.manual_axes))),), inlined_mesh=own)
    found = _on_axes(axes, mesh, region.source)
    names = dict.fromkeys(ref.name for ref in found.axis_refs())
    return replace(region, manual_axes=tuple(n for n in mesh.axis_names if n in names))


def _pinned_on(op: Op, mesh: Mesh) -> str:
    return format_sharding(_on_axes(parse_sharding(op.pinned), mesh, op.source))


def _on_axes(sharding: Sharding, mesh: Mesh, source: str) -> Sharding:
    where = f"shard_map at {source or 'unknown line'}"
    if sharding.inlined_mesh is not None and sharding.inlined_mesh.is_empty:
        sharding = replace(sharding, inlined_mesh=None)
    found = on_mesh(sharding, mesh, where)
    if found.inlined_mesh is not None:
        raise ConstraintError(
            f"the shard_map is on {found.inlined_mesh}, whose axes are none of the plan's {mesh}",
            where=where,
            fix="plan for the mesh of the shard_map, or give both one order of devices",
        )
    return found


def border_candidates(
    graph: Graph, parts: MeshParts, op: Op, base: tuple[Candidate, ...]
) -> tuple[Candidate, ...]:
    """The candidates of a border: the local tensor's, with what the manual axes cut outside.

    Free axes that the border names are kept: an open dimension is cut further, a closed one is not.

    Args:
        graph: Its borders on the plan's mesh.
        parts: Of the plan's mesh.
        op: ENTER_MANUAL or LEAVE_MANUAL.
        base: Candidates of the local tensor handed on as it is.
    """
    border = parse_sharding(op.pinned)
    mine = {p for axis in _entered_axes(graph, op) for p in parts.parts_by_axis.get(axis, ())}
    outside = parts.to_layout(border)
    manual = tuple(tuple(p for p in dim if p in mine) for dim in outside)
    written = tuple(tuple(p for p in dim if p not in mine) for dim in outside)
    banned = {p for ref in border.replicated for p in parts.parts_of(ref)} | mine

    def admits(local: Layout) -> bool:
        return not banned.intersection(p for dim in local for p in dim) and all(
            have[: len(want)] == want if dim.is_open else have == want
            for have, want, dim in zip(local, written, border.dims, strict=True)
        )

    locals_ = [c.results[0] for c in base if admits(c.results[0])] or [written]
    return tuple(_crossing(op, manual, local) for local in locals_)


def _crossing(op: Op, manual: tuple[Parts, ...], local: Layout) -> Candidate:
    whole = tuple(head + tail for head, tail in zip(manual, local, strict=True))
    if op.kind is OpKind.ENTER_MANUAL:
        return Candidate((whole,), (local,), 1)
    return Candidate((local,), (whole,), 1)


def _entered_axes(graph: Graph, op: Op) -> tuple[str, ...]:
    """Axes made manual by the shard_map whose border this op is."""
    own = [r for r in graph.regions if r.kind == "manual" and r.parent == op.region]
    if op.kind is OpKind.ENTER_MANUAL:
        return next(r for r in own if r.start > op.index).manual_axes
    return next(r for r in reversed(own) if r.stop <= op.index).manual_axes
