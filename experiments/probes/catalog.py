"""All probes."""

from __future__ import annotations

from experiments.probes import (
    collectives,
    fusion,
    layout,
    memory,
    recomputing,
    schedule,
    softmax,
    vmem,
)
from experiments.probes.probe import Probe

PROBES: tuple[Probe, ...] = (
    *vmem.PROBES,
    *collectives.PROBES,
    *schedule.PROBES,
    *fusion.PROBES,
    *softmax.PROBES,
    *recomputing.PROBES,
    *layout.PROBES,
    *memory.PROBES,
)
