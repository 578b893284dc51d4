"""What a plan keeps for backward passes, computes again and offloads, as a line and as tables."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType

from autoshard.remat.choice import Residual, ResidualChoice
from autoshard.report.layout import heading, section, table
from autoshard.report.quantities import format_bytes, format_seconds

_MAX_RESIDUALS = 20
RESIDUAL_COLUMNS = ("residual", "line", "type", "is", ">bytes", ">time")
TRIED_COLUMNS = (">kept", ">bytes", ">on the host", ">computed again", ">step", ">memory", "")


def residuals_line(choice: ResidualChoice) -> str:
    """The choice in one line."""
    if not choice.residuals:
        return f"keeps all {len(choice.kept)} residuals; jax.checkpoint has no effect"
    kept = [one for one in choice.residuals if one.is_kept and not one.is_offloaded]
    again = [one for one in choice.residuals if not one.is_kept]
    offloaded = [one for one in choice.residuals if one.is_offloaded]
    sent = f", offloads {len(offloaded)} ({_total(offloaded)})" if offloaded else ""
    return (
        f"keeps {len(kept)} ({_total(kept)}){sent}, computes {len(again)} again: saves"
        f" {format_bytes(choice.saved_bytes)} per device, adds"
        f" {format_seconds(choice.recomputed_seconds)} of computing"
    )


def _total(residuals: Sequence[Residual]) -> str:
    return format_bytes(sum(one.local_bytes for one in residuals))


def residuals_section(choice: ResidualChoice | None) -> RenderableType:
    """The largest residuals, and the sets that were planned; nothing for a program as written."""
    if choice is None or not choice.residuals:
        return Group()
    return Group(
        section(
            heading("Residuals", "what backward passes read of forward passes, largest first"),
            table(RESIDUAL_COLUMNS, residual_rows(choice, _MAX_RESIDUALS)),
        ),
        section(
            heading("Sets of residuals", _bound_text(choice)),
            table(TRIED_COLUMNS, tried_rows(choice)),
        ),
    )


def _bound_text(choice: ResidualChoice) -> str:
    if not choice.bound_seconds:  # none is known, or nothing fits
        return "in the order they were planned"
    return f"none is faster than {format_seconds(choice.bound_seconds)}, by the joint problem"


def residual_rows(choice: ResidualChoice, most: int) -> list[tuple[str, ...]]:
    """Per residual: what it is, where it is made, its type, what becomes of it, bytes, seconds."""
    found = sorted(choice.residuals, key=lambda one: (-one.local_bytes, one.name))
    rows = [_residual_row(one) for one in found[:most]]
    if left := found[most:]:
        rest = sum(one.local_bytes for one in left)
        rows.append((f"and {len(left):,} more", "", "", "", format_bytes(rest), ""))
    return rows


def _residual_row(one: Residual) -> tuple[str, ...]:
    return (
        one.what,
        one.source,
        one.type_text,
        one.fate,
        format_bytes(one.local_bytes),
        "" if one.is_kept else format_seconds(one.seconds),
    )


def tried_rows(choice: ResidualChoice) -> list[tuple[str, ...]]:
    """Per set: how many are kept, their bytes, seconds computed again, and the plan found."""
    return [
        (
            f"{one.num_kept:,}",
            format_bytes(one.kept_bytes),
            format_bytes(one.offloaded_bytes) if one.offloaded_bytes else "",
            format_seconds(one.recomputed_seconds),
            "" if one.seconds is None else format_seconds(one.seconds),
            "" if one.peak_bytes is None else format_bytes(one.peak_bytes),
            _outcome(one.is_chosen, fits=one.seconds is not None),
        )
        for one in choice.tried
    ]


def _outcome(is_chosen: bool, *, fits: bool) -> str:
    if is_chosen:
        return "this plan"
    return "" if fits else "does not fit"
