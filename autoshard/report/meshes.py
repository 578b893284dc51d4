"""The meshes that a search tried, as rows and as a table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Group, RenderableType

from autoshard.plans.plan import PlanData
from autoshard.report.layout import heading, plain, section, table
from autoshard.report.quantities import format_bytes, format_seconds

_MAX_MESHES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshRow:
    """A mesh that was considered.

    Args:
        axes: `data=2, model=4`.
        is_chosen: Whether it is the plan's.
        seconds: Predicted step time of the best plan found on it; None where there is none.
        bound_seconds: No plan on it takes less; None where nothing is known.
        peak_bytes: Memory peak of that plan, or the least one found.
        reason: Why it was not chosen.
    """

    axes: str
    is_chosen: bool
    seconds: float | None
    bound_seconds: float | None
    peak_bytes: int | None
    reason: str


def mesh_rows(plan: PlanData) -> Iterator[MeshRow]:
    """The meshes of a plan's search, in the order of its record; none where there was no search."""
    for one in () if plan.mesh_search is None else plan.mesh_search.tried:
        yield MeshRow(
            axes=", ".join(f"{axis.name}={axis.size}" for axis in one.mesh.axes),
            is_chosen=one.outcome == "chosen",
            seconds=one.seconds,
            bound_seconds=one.bound_seconds,
            peak_bytes=one.peak_bytes,
            reason=one.reason,
        )


def meshes_section(rows: tuple[MeshRow, ...]) -> RenderableType:
    """A table of the meshes tried; nothing where there was no search."""
    if not rows:
        return Group()
    cells = [
        (
            plain(row.axes, "bold" if row.is_chosen else ""),
            "" if row.seconds is None else format_seconds(row.seconds),
            "" if row.bound_seconds is None else format_seconds(row.bound_seconds),
            "" if row.peak_bytes is None else format_bytes(row.peak_bytes),
            "this plan" if row.is_chosen else row.reason,
        )
        for row in rows[:_MAX_MESHES]
    ]
    if len(rows) > _MAX_MESHES:
        cells.append((plain(f"and {len(rows) - _MAX_MESHES:,} more"), "", "", "", ""))
    return section(
        heading("Meshes", f"{len(rows):,} of as many devices; the step as the solver sees it"),
        table(("mesh", ">step", ">at least", ">memory", ""), cells),
    )
