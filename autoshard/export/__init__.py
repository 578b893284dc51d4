"""Plans as StableHLO programs: shardings on every value, Shardy's export steps, a verifier."""

from __future__ import annotations

from autoshard.export.stages import (
    STAGES,
    Stage,
    run_stage,
    run_stages,
    stage_names,
)
from autoshard.export.verify_module import Violation, verify_module

__all__ = [
    "STAGES",
    "Stage",
    "Violation",
    "run_stage",
    "run_stages",
    "stage_names",
    "verify_module",
]
