"""Real models with a full training step, and the shardings people write for them by hand."""

from experiments.workloads.baselines import BASELINES, baseline_batch_axes, baseline_specs
from experiments.workloads.pinning import Pins, with_pins
from experiments.workloads.registry import (
    DEEP_WORKLOADS,
    FULL_WORKLOADS,
    FURTHER_WORKLOADS,
    SMALL_WORKLOADS,
    WORKLOADS,
    get_workload,
)
from experiments.workloads.workload import Workload

__all__ = [
    "BASELINES",
    "DEEP_WORKLOADS",
    "FULL_WORKLOADS",
    "FURTHER_WORKLOADS",
    "SMALL_WORKLOADS",
    "WORKLOADS",
    "Pins",
    "Workload",
    "baseline_batch_axes",
    "baseline_specs",
    "get_workload",
    "with_pins",
]
