"""Collectives the user wrote in a shard_map body: what they send, and to whom."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxlib.mlir import ir

from autoshard.graph.collective import WrittenCollective

_KIND_BY_NAME = {
    "all_gather": "all-gather",
    "all_reduce": "all-reduce",
    "all_to_all": "all-to-all",
    "collective_broadcast": "collective-broadcast",
    "collective_permute": "collective-permute",
    "reduce_scatter": "reduce-scatter",
}


def read_collective(op: Any) -> WrittenCollective | None:
    """What a StableHLO op sends; None for ops that are no collectives, and where nothing moves."""
    kind = _KIND_BY_NAME.get(op.name.removeprefix("stablehlo."))
    if kind is None:
        return None
    name = "source_target_pairs" if kind == "collective-permute" else "replica_groups"
    rows = np.array(ir.DenseIntElementsAttr(op.attributes[name]))
    groups = tuple(tuple(int(place) for place in row if place >= 0) for row in rows)
    moves = any(len(set(group)) > 1 for group in groups)
    return WrittenCollective(kind, groups) if moves else None
