"""What differs between two plans, as text."""

from __future__ import annotations

from typing import TextIO

from rich.console import Group, RenderableType

from autoshard.plans.plan_diff import Change, PlanDiff
from autoshard.report.alike import gather_alike
from autoshard.report.layout import (
    FoldingTable,
    heading,
    plain,
    print_on,
    render_text,
    section,
    table,
)
from autoshard.report.quantities import format_bytes, format_percent, format_seconds

_MAX_ROWS = 20


def format_diff(
    diff: PlanDiff, before: str = "before", after: str = "after", width: int = 100
) -> str:
    """Differences as plain text, one section per subject; one line says so where there are none.

    Args:
        diff: What `diff_plans` found.
        before: What to call the first plan: its file.
        after: What to call the second one.
        width: Columns of the text.
    """
    return render_text(_report(diff, before, after), width)


def print_diff(
    diff: PlanDiff, before: str, after: str, file: TextIO, width: int | None = None
) -> None:
    """Print differences, in colour and in its width if the file is a terminal."""
    print_on(_report(diff, before, after), file, width)


def _report(diff: PlanDiff, before: str, after: str) -> RenderableType:
    if diff.is_empty:
        return plain("The plans are the same.")
    parts: list[RenderableType] = [plain(f"{before} -> {after}", "bold")]
    if diff.program:
        parts.append(_section("Program", diff.program))
    if diff.asked:
        parts.append(_section("Asked for", diff.asked))
    if diff.totals:
        parts.append(section(heading("Totals"), _numbers(diff.totals)))
    for title, changes in (("Arguments", diff.arguments), ("Results", diff.results)):
        if changes:
            parts.append(_section(title, _gathered(changes), len(changes)))
    for title, changes in (
        ("Constraints", diff.constraints),
        ("Values", diff.values),
        ("Ops", diff.ops),
        ("Heavy matmuls", diff.products),
        ("Residuals", diff.residuals),
        ("Collectives, bytes per device", diff.collectives),
    ):
        if changes:
            parts.append(_section(title, changes))
    if diff.memory:
        parts.append(section(heading("Memory"), _numbers(diff.memory)))
    if diff.baselines:
        parts.append(_section("Plans written by hand", diff.baselines))
    if diff.notes:
        parts.append(_section("Notes", diff.notes))
    if diff.rounds:
        parts.append(_section("Rounds", diff.rounds))
    return Group(*parts)


def _section(
    title: str, changes: tuple[Change, ...], num_changes: int | None = None
) -> RenderableType:
    rows = [(change.name, change.before, change.after) for change in changes[:_MAX_ROWS]]
    if len(changes) > _MAX_ROWS:
        rows.append((f"and {len(changes) - _MAX_ROWS:,} more", "", ""))
    count = len(changes) if num_changes is None else num_changes
    return section(heading(title, f"{count:,} changed"), table(("what", "before", "after"), rows))


def _gathered(changes: tuple[Change, ...]) -> tuple[Change, ...]:
    """Changes that are the same for every layer, as one."""
    return tuple(
        Change(
            name=f"{name} ({len(positions):,})" if len(positions) > 1 else name,
            before=before,
            after=after,
        )
        for name, (before, after), positions in gather_alike(
            (change.name, (change.before, change.after)) for change in changes
        )
    )


def _numbers(changes: tuple[Change, ...]) -> FoldingTable:
    rows = [(change.name, *change_cells(change)) for change in changes[:_MAX_ROWS]]
    if len(changes) > _MAX_ROWS:
        rows.append((f"and {len(changes) - _MAX_ROWS:,} more", "", "", ""))
    return table(("what", "before", "after", ">change"), rows)


def change_cells(change: Change) -> tuple[str, str, str]:
    """Before, after, and by how much; numbers as people read them, as far as that tells them."""
    before = _amount(change.before, change.before_number, change.unit)
    after = _amount(change.after, change.after_number, change.unit)
    if before == after:  # closer than three digits tell
        before, after = change.before, change.after
    return before, after, _relative(change)


def _amount(text: str, number: float | None, unit: str) -> str:
    if number is None:
        return text
    if unit == "s":
        return format_seconds(number)
    return format_bytes(number) if unit == "B" else f"{number:.3g}"


def _relative(change: Change) -> str:
    before, after = change.before_number, change.after_number
    if before is None or after is None or not before:
        return ""
    sign = "+" if after > before else "-"
    return sign + format_percent(abs(after - before) / before)
