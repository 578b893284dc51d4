"""Compiler models: one a chip, in five policies, with numbers from probes."""

from autoshard.backends.backend import Backend, Model, generic, replace
from autoshard.backends.chip_data import POLICIES, ChipData, chip_data, format_chip, load_chip
from autoshard.backends.collectives import CollectivePolicy
from autoshard.backends.fusion import FusionPolicy
from autoshard.backends.known import MODELS, backend_for, compiler_options, get_backend
from autoshard.backends.layout import LayoutPolicy
from autoshard.backends.memory import MemoryPolicy
from autoshard.backends.probed import Probed
from autoshard.backends.schedule import SchedulePolicy

__all__ = [
    "MODELS",
    "POLICIES",
    "Backend",
    "ChipData",
    "CollectivePolicy",
    "FusionPolicy",
    "LayoutPolicy",
    "MemoryPolicy",
    "Model",
    "Probed",
    "SchedulePolicy",
    "backend_for",
    "chip_data",
    "compiler_options",
    "format_chip",
    "generic",
    "get_backend",
    "load_chip",
    "replace",
]
