"""Shardy's sharding representation as plain values: meshes, axes, shardings, text, checks."""

from __future__ import annotations

from autoshard.sharding.axes import AxisRef
from autoshard.sharding.canonical import canonicalize, merge_axes
from autoshard.sharding.device_groups import Groups, axes_crossed, spanned_axes
from autoshard.sharding.layout import (
    device_to_shard,
    is_equivalent,
    local_shape,
    num_shards,
    padding,
    shard_slices,
    unused_axes,
)
from autoshard.sharding.manual import ManualComputation, ManualRegion, ManualShapes
from autoshard.sharding.manual_parser import find_manual_regions, parse_manual_computation
from autoshard.sharding.mesh import Mesh, MeshAxis, parse_mesh_sizes
from autoshard.sharding.mesh_parser import parse_mesh, parse_named_mesh
from autoshard.sharding.mesh_printer import format_axis_ref, format_mesh, format_mesh_name
from autoshard.sharding.op_sharding_rule import OpShardingRule
from autoshard.sharding.printer import (
    format_dim_sharding,
    format_manual_computation,
    format_sharding,
)
from autoshard.sharding.refine import refine_mesh, refine_sharding
from autoshard.sharding.rule_parser import parse_op_sharding_rule
from autoshard.sharding.rule_printer import format_factor, format_op_sharding_rule
from autoshard.sharding.sharding import HOST_MEMORY, DimSharding, Sharding
from autoshard.sharding.sharding_parser import (
    find_shardings,
    parse_axis_ref,
    parse_dim_sharding,
    parse_sharding,
)
from autoshard.sharding.translate import (
    axes_cutting,
    digits,
    relative_mesh,
    translate_sharding,
)
from autoshard.sharding.verify import (
    check_mesh,
    check_sharding,
    in_mesh_order,
    resolve_mesh,
    verify_free_axes,
    verify_mesh,
    verify_sharding,
)
from autoshard.sharding.verify_manual import (
    make_manual_axes_explicit,
    manual_local_shape,
    verify_manual_computation,
    verify_manual_region,
    verify_nesting,
)
from autoshard.sharding.verify_rule import check_op_sharding_rule, verify_op_sharding_rule

__all__ = [
    "HOST_MEMORY",
    "AxisRef",
    "DimSharding",
    "Groups",
    "ManualComputation",
    "ManualRegion",
    "ManualShapes",
    "Mesh",
    "MeshAxis",
    "OpShardingRule",
    "Sharding",
    "axes_crossed",
    "axes_cutting",
    "canonicalize",
    "check_mesh",
    "check_op_sharding_rule",
    "check_sharding",
    "device_to_shard",
    "digits",
    "find_manual_regions",
    "find_shardings",
    "format_axis_ref",
    "format_dim_sharding",
    "format_factor",
    "format_manual_computation",
    "format_mesh",
    "format_mesh_name",
    "format_op_sharding_rule",
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
    "parse_op_sharding_rule",
    "parse_sharding",
    "refine_mesh",
    "refine_sharding",
    "relative_mesh",
    "resolve_mesh",
    "shard_slices",
    "spanned_axes",
    "translate_sharding",
    "unused_axes",
    "verify_free_axes",
    "verify_manual_computation",
    "verify_manual_region",
    "verify_mesh",
    "verify_nesting",
    "verify_op_sharding_rule",
    "verify_sharding",
]
