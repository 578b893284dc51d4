"""autoshard plans how a JAX program is sharded over a device mesh, before the compile."""

from autoshard.api import optimize
from autoshard.apply.planned import Plan, load_plan
from autoshard.errors import (
    AutoshardError,
    ConstraintError,
    ExportError,
    InputError,
    PlanError,
    ShardingError,
)

__all__ = [
    "AutoshardError",
    "ConstraintError",
    "ExportError",
    "InputError",
    "Plan",
    "PlanError",
    "ShardingError",
    "load_plan",
    "optimize",
]
