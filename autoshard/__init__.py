"""autoshard plans how a JAX program is sharded over a device mesh, before the compile."""

from __future__ import annotations

import gc
import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autoshard.api import optimize, optimize_module
    from autoshard.calibration import calibrate
    from autoshard.constraints import Group, Keep, Offload, Pin, Recompute, Uses
    from autoshard.errors import (
        AutoshardError,
        ConstraintError,
        ExportError,
        InputError,
        PlanError,
        ShardingError,
    )
    from autoshard.graph.custom_cost import CustomCost
    from autoshard.plan import Plan
    from autoshard.planned_jit import jit
    from autoshard.saved_plan import load_plan
    from autoshard.sharding import AxisRef, DimSharding, Mesh, Sharding

__all__ = [
    "AutoshardError",
    "AxisRef",
    "ConstraintError",
    "CustomCost",
    "DimSharding",
    "ExportError",
    "Group",
    "InputError",
    "Keep",
    "Mesh",
    "Offload",
    "Pin",
    "Plan",
    "PlanError",
    "Recompute",
    "Sharding",
    "ShardingError",
    "Uses",
    "calibrate",
    "jit",
    "load_plan",
    "optimize",
    "optimize_module",
]

# JAX says so as it is imported, which is too late where autoshard imports jaxlib first.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")

_NAMES_BY_MODULE = {
    "autoshard.api": ("optimize", "optimize_module"),
    "autoshard.saved_plan": ("load_plan",),
    "autoshard.plan": ("Plan",),
    "autoshard.calibration": ("calibrate",),
    "autoshard.planned_jit": ("jit",),
    "autoshard.constraints": ("Group", "Keep", "Offload", "Pin", "Recompute", "Uses"),
    "autoshard.errors": (
        "AutoshardError",
        "ConstraintError",
        "ExportError",
        "InputError",
        "PlanError",
        "ShardingError",
    ),
    "autoshard.graph.custom_cost": ("CustomCost",),
    "autoshard.sharding": ("AxisRef", "DimSharding", "Mesh", "Sharding"),
}


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used: commands that need no JAX start without it.

    What modules define lives on: looking for cycles among it took a seventh of that time.
    """
    module = next((one for one, names in _NAMES_BY_MODULE.items() if name in names), None)
    if module is not None:
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            value = globals()[name] = getattr(importlib.import_module(module), name)
        finally:
            if was_enabled:
                gc.enable()
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
