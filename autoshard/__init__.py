"""autoshard plans how a JAX program is sharded over a device mesh, before the compile."""

from autoshard.api import optimize, optimize_module
from autoshard.apply.planned import Plan, load_plan
from autoshard.constraints import Group, Pin, Uses
from autoshard.errors import (
    AutoshardError,
    ConstraintError,
    ExportError,
    InputError,
    PlanError,
    ShardingError,
)
from autoshard.sharding import AxisRef, DimSharding, Mesh, Sharding

__all__ = [
    "AutoshardError",
    "AxisRef",
    "ConstraintError",
    "DimSharding",
    "ExportError",
    "Group",
    "InputError",
    "Mesh",
    "Pin",
    "Plan",
    "PlanError",
    "Sharding",
    "ShardingError",
    "Uses",
    "load_plan",
    "optimize",
    "optimize_module",
]
