"""An annotated module as a plan gives it out: as it compiles, or after an export step."""

from __future__ import annotations

from autoshard.collectives import ModulePrices
from autoshard.export.stages import (
    run_stages,
    sink_data_flow_edges,
    stage_names,
    stages_until,
)
from autoshard.mlir_modules import module_context, module_text, parse_module

PLANNED = "planned"
"""The form that compiles: all of the annotated module, data-flow edges sunk."""


def planned_text(annotated: bytes, stage: str = PLANNED, prices: ModulePrices | None = None) -> str:
    """The text of an annotated module at a stage.

    Args:
        annotated: As `annotated_module` gives it.
        stage: `planned`, or one of `stage_names()`.
        prices: For the steps that choose.

    Raises:
        InputError: There is no such stage.
        ExportError: A step refuses the module.
    """
    if stage == PLANNED:
        with module_context():
            parsed = parse_module(annotated)
            sink_data_flow_edges(parsed)
            return module_text(parsed)
    return run_stages(annotated, stage, prices=prices)


__all__ = ["PLANNED", "planned_text", "stage_names", "stages_until"]
