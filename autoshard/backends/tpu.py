"""Models of libtpu."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from autoshard.backends.backend import Backend, Model, generic, replace
from autoshard.backends.chip_data import chip_data


@cache
def _tpu() -> Backend:
    return generic("tpu", chip_data("tpu"))


TPU_MODELS: Mapping[str, Model] = {
    "tpu": _tpu,
    "tpu-v4": lambda: replace(_tpu(), chip_data("tpu-v4")),
    "tpu-v5e": lambda: replace(_tpu(), chip_data("tpu-v5e")),
    "tpu-v5p": lambda: replace(_tpu(), chip_data("tpu-v5p")),
    "tpu-v6e": lambda: replace(_tpu(), chip_data("tpu-v6e")),
    "tpu7x": lambda: replace(_tpu(), chip_data("tpu7x")),
}
