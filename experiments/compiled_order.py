"""The order in which points are measured: every beginning of it covers as much as it can."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TypeAlias

from experiments.compiled_point import OPTIMIZED, TIGHT, CompiledPoint

Cell: TypeAlias = tuple[str, str, str]
"""Workload, chip and mesh."""

_FIRST = (OPTIMIZED, "fsdp", "data_parallel", "megatron")


def best_first(points: Iterable[CompiledPoint]) -> tuple[CompiledPoint, ...]:
    """Sort points so that a run that is cut short still covers workloads, chips and meshes.

    The optimized plan and the usual ones by hand come first, always together, as one without the
    others compares nothing; then those within a tight budget, then the other plans. Among equals
    that cell is next whose chip on its mesh, and whose workload, have been measured the least so
    far.
    """
    given = tuple(points)
    tiers = [
        [p for p in given if p.plan in _FIRST],
        [p for p in given if p.plan == TIGHT],
        [p for p in given if p.plan not in (*_FIRST, TIGHT)],
    ]
    return tuple(point for tier in tiers for point in _covering(tier))


def _covering(points: list[CompiledPoint]) -> Iterator[CompiledPoint]:
    by_cell: dict[Cell, list[CompiledPoint]] = {}
    for point in points:
        by_cell.setdefault((point.workload, point.hardware, point.mesh), []).append(point)
    seen: Counter[object] = Counter()
    while by_cell:
        cell = min(by_cell, key=lambda cell: _times_seen(seen, cell))  # of equals, the first given
        yield from by_cell.pop(cell)
        seen.update(_facets(cell))


def _facets(cell: Cell) -> tuple[object, ...]:
    workload, chip, mesh = cell
    return workload, chip, mesh, (chip, mesh), (workload, chip), (workload, mesh)


def _times_seen(seen: Counter[object], cell: Cell) -> tuple[int, ...]:
    counts = [seen[facet] for facet in _facets(cell)]
    return sum(counts[:3]), sum(counts[3:])
