"""All probes."""

from __future__ import annotations

from experiments.probes import collectives, fusion, layout, memory, recomputing, schedule, vmem
from experiments.probes.probe import Probe

PROBES: tuple[Probe, ...] = (
    *vmem.PROBES,
    *collectives.PROBES,
    *schedule.PROBES,
    *fusion.PROBES,
    *recomputing.PROBES,
    *layout.PROBES,
    *memory.PROBES,
)
