"""The plans that refining compiled, as a table."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from autoshard.plans.refinement import Refinement, TriedPlan
from autoshard.report.layout import heading, indented, plain, section, table
from autoshard.report.quantities import format_bytes, format_percent, format_seconds

_COLUMNS = ("plan", ">predicted", ">compiled", ">won", ">peak", ">constraints", ">took")


def refinement_section(found: Refinement | None) -> RenderableType:
    """What was compiled, round by round; nothing where the plan was not refined."""
    if found is None:
        return Group()
    cells = [_row(found, place) for place in range(len(found.tried))]
    ending = f"Refining ended: {found.ended}." if found.ended else ""
    lines = [
        *_same_programs(found),
        *_whys(found),
        _chosen(found),
        ending,
        f"Learnt: {found.corrected} corrected." if found.corrected else "",
        f"Seconds of a step: {found.measure}. {found.compiler}".rstrip(),
    ]
    return section(
        heading("Compiled", f"{len(found.tried)} plans for {found.target}"),
        table(_COLUMNS, cells),
        *(indented(line) for line in lines if line),
    )


def _row(found: Refinement, place: int) -> tuple[str | Text, ...]:
    one = found.tried[place]
    name = f"{one.round}  {one.name}"
    return (
        plain(name, "bold" if place == found.chosen else ""),
        format_seconds(one.predicted_seconds),
        _compiled(one),
        _won(one),
        "" if one.compiled_bytes is None else _peak(one),
        f"{one.num_constraints:,}",
        format_seconds(one.compile_seconds + one.plan_seconds),
    )


def _same_programs(found: Refinement) -> list[str]:
    """Of plans that are the same program as others, the names of these."""
    return [
        f"{one.round}  {one.name}: the same program as {', '.join(one.also)}."
        for one in found.tried
        if one.also
    ]


def _whys(found: Refinement) -> list[str]:
    """Of plans after the first round, why they differ; of those that did not compile, why not."""
    told = (one for one in found.tried if one.round > 1 or one.compiled_seconds is None)
    return [f"{one.round}  {one.name}: {one.why}" for one in told]


def _compiled(one: TriedPlan) -> str:
    if one.compiled_seconds is None:
        return one.status
    spread = f" +- {format_seconds(one.spread_seconds)}" if one.spread_seconds else ""
    return f"{format_seconds(one.compiled_seconds)}{spread}"


def _won(one: TriedPlan) -> str:
    """Of the step of the best plan before it, what this one saves."""
    if one.compiled_seconds is None or not one.best_before:
        return ""
    return f"{100 * (1 - one.compiled_seconds / one.best_before):+.1f} %"


def _peak(one: TriedPlan) -> str:
    assert one.compiled_bytes is not None
    too_large = "" if one.fits else ", too large"
    return f"{format_bytes(one.compiled_bytes)}{too_large}"


def _chosen(found: Refinement) -> str:
    if found.chosen is not None:
        one = found.tried[found.chosen]
        within = "" if found.memory_budget is None else ", within the memory budget"
        left = "" if found.left is None else f"; at most {format_percent(found.left)} left to win"
        return f"This plan is the best that compiled{within}: {one.name}, round {one.round}{left}."
    if found.missing_bytes:
        return (
            "No plan was found that compiles within the memory budget of"
            f" {found.memory_budget:,} bytes: the best misses it by {found.missing_bytes:,} bytes."
        )
    return "No plan compiled: this is the plan as it was before."
