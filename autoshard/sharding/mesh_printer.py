"""Axes and meshes as Shardy prints them."""

from __future__ import annotations

from autoshard.sharding.axes import AxisRef
from autoshard.sharding.mesh import Mesh
from autoshard.sharding.string_literals import BARE_NAME, quoted


def format_axis_ref(axis: AxisRef) -> str:
    """`"x"` or `"x":(pre_size)size`."""
    if axis.size is None:
        return quoted(axis.name)
    return f"{quoted(axis.name)}:({axis.pre_size}){axis.size}"


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
