"""Models of XLA for GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from autoshard.backends.backend import Backend, Model, generic, replace
from autoshard.backends.chip_data import chip_data


@cache
def _gpu() -> Backend:
    return generic("gpu", chip_data("gpu"))


GPU_MODELS: Mapping[str, Model] = {
    "gpu": _gpu,
    "a100": lambda: replace(_gpu(), chip_data("a100")),
    "h100": lambda: replace(_gpu(), chip_data("h100")),
    "h200": lambda: replace(_gpu(), chip_data("h200")),
    "b200": lambda: replace(_gpu(), chip_data("b200")),
    "gb200": lambda: replace(_gpu(), chip_data("gb200")),
}
