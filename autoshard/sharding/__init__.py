"""Shardy's sharding representation as plain values: meshes, axes, shardings, text, checks."""

from __future__ import annotations

from autoshard.sharding.axes import AxisRef
from autoshard.sharding.canonical import canonicalize, merge_axes
from autoshard.sharding.layout import (
    device_to_shard,
    is_equivalent,
    local_shape,
    num_shards,
    padding,
    shard_slices,
    unused_axes,
)
from autoshard.sharding.manual import ManualComputation, ManualShapes
from autoshard.sharding.mesh import Mesh, MeshAxis, parse_mesh_sizes
from autoshard.sharding.refine import refine_mesh, refine_sharding
from autoshard.sharding.sharding import DimSharding, Sharding
from autoshard.sharding.text import (
    find_shardings,
    format_axis_ref,
    format_dim_sharding,
    format_manual_computation,
    format_mesh,
    format_mesh_name,
    format_sharding,
    parse_axis_ref,
    parse_dim_sharding,
    parse_manual_computation,
    parse_mesh,
    parse_named_mesh,
    parse_sharding,
)
from autoshard.sharding.verify import (
    check_mesh,
    check_sharding,
    in_mesh_order,
    resolve_mesh,
    verify_mesh,
    verify_sharding,
)
from autoshard.sharding.verify_manual import (
    make_manual_axes_explicit,
    manual_local_shape,
    verify_manual_computation,
)

__all__ = [
    "AxisRef",
    "DimSharding",
    "ManualComputation",
    "ManualShapes",
    "Mesh",
    "MeshAxis",
    "Sharding",
    "canonicalize",
    "check_mesh",
    "check_sharding",
    "device_to_shard",
    "find_shardings",
    "format_axis_ref",
    "format_dim_sharding",
    "format_manual_computation",
    "format_mesh",
    "format_mesh_name",
    "format_sharding",
    "in_mesh_order",
    "is_equivalent",
    "local_shape",
    "make_manual_axes_explicit",
    "manual_local_shape",
    "merge_axes",
    "num_shards",
    "padding",
    "parse_axis_ref",
    "parse_dim_sharding",
    "parse_manual_computation",
    "parse_mesh",
    "parse_mesh_sizes",
    "parse_named_mesh",
    "parse_sharding",
    "refine_mesh",
    "refine_sharding",
    "resolve_mesh",
    "shard_slices",
    "unused_axes",
    "verify_manual_computation",
    "verify_mesh",
    "verify_sharding",
]
