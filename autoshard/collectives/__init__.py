"""Reshards as sequences of Shardy's collectives: found, priced, and carried out on NumPy arrays."""

from __future__ import annotations

from autoshard.collectives.agreement import Agreement, OpTensor, OpWork, agree
from autoshard.collectives.pricing import (
    CollectivePrices,
    HardwarePrices,
    ModulePrices,
    ReceivedBytes,
    collective_cost,
)
from autoshard.collectives.search import find_collectives
from autoshard.collectives.simulate import carry_out, cut_whole
from autoshard.collectives.steps import AxisMove, Collective, CollectiveKind, check_collective

__all__ = [
    "Agreement",
    "AxisMove",
    "Collective",
    "CollectiveKind",
    "CollectivePrices",
    "HardwarePrices",
    "ModulePrices",
    "OpTensor",
    "OpWork",
    "ReceivedBytes",
    "agree",
    "carry_out",
    "check_collective",
    "collective_cost",
    "cut_whole",
    "find_collectives",
]
