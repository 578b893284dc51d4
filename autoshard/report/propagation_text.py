"""A plan beside propagation alone, as text."""

from __future__ import annotations

from typing import TextIO

from rich.console import Group, RenderableType

from autoshard.report.layout import (
    heading,
    plain,
    print_on,
    render_text,
    section,
    table,
)
from autoshard.report.quantities import format_seconds
from autoshard.sharding.spec_text import format_spec
from autoshard.verification.propagation_comparison import (
    Decision,
    Difference,
    PropagationComparison,
)

_MAX_DECISIONS = 20
_MAX_VALUES = 12


def format_comparison(comparison: PropagationComparison, width: int = 100) -> str:
    """Where a plan differs from propagation alone, why, and what that saves, as plain text."""
    return render_text(_report(comparison), width)


def print_comparison(
    comparison: PropagationComparison, file: TextIO, width: int | None = None
) -> None:
    """Print a comparison, in colour and in its width if the file is a terminal."""
    print_on(_report(comparison), file, width)


def _report(found: PropagationComparison) -> RenderableType:
    start = (
        "the plan's arguments and results" if found.inputs == "plan" else "the program as written"
    )
    lines: list[RenderableType] = [
        plain(
            f"Shardy's propagation alone, from {start}: {found.num_differences} of"
            f" {found.num_values} values lie elsewhere",
            "bold",
        ),
        plain(_totals(found)),
    ]
    lines += map(_decision, found.decisions[:_MAX_DECISIONS])
    if len(found.decisions) > _MAX_DECISIONS:
        lines.append(plain(f"and {len(found.decisions) - _MAX_DECISIONS} constraints more"))
    if found.unexplained:
        lines.append(
            section(heading("Following no single constraint"), _differences(found.unexplained))
        )
    return Group(*lines)


def _totals(found: PropagationComparison) -> str:
    plan = f"step time {format_seconds(found.plan_seconds)} planned"
    if found.propagated_seconds is None or found.saved_seconds is None:
        return f"{plan}; what propagation's would take, nobody can tell"
    return (
        f"{plan}, {format_seconds(found.propagated_seconds)} as propagated:"
        f" {_gain(found.saved_seconds)}"
    )


def _gain(seconds: float) -> str:
    if seconds < 0:
        return f"the plan costs {format_seconds(-seconds)} more"
    return f"the plan saves {format_seconds(seconds)}"


def _decision(decision: Decision) -> RenderableType:
    saved = decision.saved_seconds
    what = "" if saved is None else f"; {_gain(saved)} here"
    where = f" at {decision.source}" if decision.source else ""
    kind = "read" if "<" in decision.path else "value"
    title = f"Constraint on {kind} {decision.path}{where}: {format_spec(decision.wanted)}{what}"
    return section(heading(title), _differences(decision.differences))


def _differences(differences: tuple[Difference, ...]) -> RenderableType:
    rows = [
        (
            difference.path,
            difference.source,
            format_spec(difference.planned),
            format_spec(difference.propagated),
        )
        for difference in differences[:_MAX_VALUES]
    ]
    if len(differences) > _MAX_VALUES:
        rows.append((f"and {len(differences) - _MAX_VALUES} more", "", "", ""))
    return table(("value", "line", "planned", "propagated"), rows)
