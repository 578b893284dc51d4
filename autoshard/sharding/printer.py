"""Meshes, shardings and manual computations as Shardy prints them."""

from __future__ import annotations

from autoshard.sharding.axes import AxisRef
from autoshard.sharding.manual import ManualComputation
from autoshard.sharding.mesh import Mesh
from autoshard.sharding.sharding import DimSharding, Sharding
from autoshard.sharding.string_literals import BARE_NAME, quoted


def format_axis_ref(axis: AxisRef) -> str:
    """`"x"` or `"x":(pre_size)size`."""
    if axis.size is None:
        return quoted(axis.name)
    return f"{quoted(axis.name)}:({axis.pre_size}){axis.size}"


def format_dim_sharding(dim: DimSharding) -> str:
    """`{"x", "y":(1)2, ?}p3`."""
    items = [format_axis_ref(axis) for axis in dim.axes]
    if dim.is_open:
        items.append("?")
    priority = "" if dim.priority is None else f"p{dim.priority}"
    return f"{{{', '.join(items)}}}{priority}"


def format_sharding(sharding: Sharding) -> str:
    """`<@mesh, [{"x"}, {?}], replicated={"y"}, unreduced={"z"}>`, as Shardy prints it."""
    if sharding.inlined_mesh is not None:
        mesh = f"mesh{format_mesh(sharding.inlined_mesh)}"
    else:
        mesh = format_mesh_name(sharding.mesh_name)
    dims = ", ".join(format_dim_sharding(dim) for dim in sharding.dims)
    text = f"<{mesh}, [{dims}]"
    if sharding.replicated:
        text += f", replicated={_format_axis_list(sharding.replicated)}"
    if sharding.unreduced:
        text += f", unreduced={_format_axis_list(sharding.unreduced)}"
    return text + ">"


def format_mesh(mesh: Mesh, name: str | None = None) -> str:
    """`<["x"=4, "y"=2], device_ids=[...]>`; with a name, the whole `sdy.mesh` line."""
    axes = ", ".join(f"{quoted(axis.name)}={axis.size}" for axis in mesh.axes)
    ids = ""
    if mesh.device_ids is not None:
        ids = f", device_ids=[{', '.join(map(str, mesh.device_ids))}]"
    text = f"<[{axes}]{ids}>"
    return text if name is None else f"sdy.mesh {format_mesh_name(name)} = {text}"


def format_mesh_name(name: str) -> str:
    """`@mesh`, or `@"a mesh"` for a name with other characters."""
    return f"@{name}" if BARE_NAME.fullmatch(name) else f"@{quoted(name)}"


def format_manual_computation(manual: ManualComputation) -> str:
    """`in_shardings=[<...>] out_shardings=[<...>] manual_axes={"x"}`."""
    ins = ", ".join(map(format_sharding, manual.in_shardings))
    outs = ", ".join(map(format_sharding, manual.out_shardings))
    axes = ", ".join(map(quoted, manual.manual_axes))
    return f"in_shardings=[{ins}] out_shardings=[{outs}] manual_axes={{{axes}}}"


def _format_axis_list(axes: tuple[AxisRef, ...]) -> str:
    return f"{{{', '.join(map(format_axis_ref, axes))}}}"
