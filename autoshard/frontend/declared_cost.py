"""The cost that a kernel's author wrote into a custom call."""

from __future__ import annotations

import json
from typing import Any

from jaxlib.mlir import ir

from autoshard.errors import InputError
from autoshard.graph.custom_cost import CustomCost


def declared_cost(op: Any) -> CustomCost | None:
    """The cost estimate of a Pallas kernel for TPU; None where a custom call has none.

    Pallas writes `pl.CostEstimate` into the call's configuration; an estimate that is no amount
    counts as none.
    """
    try:
        config = json.loads(ir.StringAttr(op.attributes["backend_config"]).value)
        estimate = config["custom_call_config"]["cost_estimate"]
        return CustomCost(
            flops=float(estimate.get("flops", 0)),
            vector_flops=float(estimate.get("transcendentals", 0)),
            num_bytes=float(estimate["bytes_accessed"]) if "bytes_accessed" in estimate else None,
        )
    except (ValueError, KeyError, TypeError, AttributeError, InputError):
        return None
