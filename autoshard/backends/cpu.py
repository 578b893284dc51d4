"""Models of XLA for host CPUs."""

from __future__ import annotations

from collections.abc import Mapping

from autoshard.backends.backend import Model, generic
from autoshard.backends.chip_data import chip_data

CPU_MODELS: Mapping[str, Model] = {
    "cpu": lambda: generic("cpu", chip_data("cpu")),
}
