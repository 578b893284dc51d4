"""Shardings in the words of JAX's `PartitionSpec`."""

from __future__ import annotations

from autoshard.sharding.axes import AxisRef
from autoshard.sharding.sharding import DimSharding, Sharding


def format_spec(sharding: Sharding) -> str:
    """`P('data', ('model', 'x:(1)2'))`, trailing uncut dimensions left out.

    A sub-axis is `'name:(pre_size)size'`; in JAX it is an axis of a refined mesh. A dimension left
    to the partitioner is `P.UNCONSTRAINED`, or ends in `...` where it has axes already. Axes of a
    partial sum come last, as `unreduced={'x'}`. Behind it stands the mesh where that is not the
    plan's: `P('p') on mesh (p=4, q=2; device_ids=[...])`.
    """
    dims = [_format_dim(dim) for dim in sharding.dims]
    while dims and dims[-1] == "None":
        dims.pop()
    for kind, axes in (("replicated", sharding.replicated), ("unreduced", sharding.unreduced)):
        if axes:
            dims.append(f"{kind}={{{', '.join(map(_format_axis, axes))}}}")
    mesh = f" on {sharding.inlined_mesh}" if sharding.inlined_mesh is not None else ""
    return f"P({', '.join(dims)}){mesh}"


def _format_dim(dim: DimSharding) -> str:
    axes = [_format_axis(axis) for axis in dim.axes]
    if not axes:
        return "P.UNCONSTRAINED" if dim.is_open else "None"
    if dim.is_open:
        axes.append("...")
    return axes[0] if len(axes) == 1 else f"({', '.join(axes)})"


def _format_axis(axis: AxisRef) -> str:
    if axis.size is None:
        return repr(axis.name)
    return repr(f"{axis.name}:({axis.pre_size}){axis.size}")
