"""A plan beside a compiled program, as text."""

from __future__ import annotations

import math
from typing import TextIO

from rich.console import Group, RenderableType

from autoshard.listed import listed
from autoshard.report.layout import (
    heading,
    indented,
    plain,
    print_on,
    render_text,
    section,
    table,
)
from autoshard.report.quantities import format_bytes, format_count, format_seconds
from autoshard.verification.collective_comparison import PLAIN, CollectiveRow
from autoshard.verification.verification import FailedCompile, Verification

_MAX_ROWS = 30
_MAX_NAMES = 12


def format_verification(found: Verification, width: int = 100) -> str:
    """Predicted and compiled side by side, as plain text."""
    return render_text(_report(found), width)


def print_verification(found: Verification, file: TextIO, width: int | None = None) -> None:
    """Print it, in colour and in its width if the file is a terminal."""
    print_on(_report(found), file, width)


def _report(found: Verification) -> RenderableType:
    lines: list[RenderableType] = [
        plain(f"{found.function} on {found.mesh}, compiled for {_device(found)}", "bold"),
        plain(f"{found.status}: {found.advice}"),
    ]
    if found.is_compiled:
        lines.append(section(heading("Predicted and compiled"), _totals(found)))
        lines.append(section(heading("Collectives", "per device and step"), _collectives(found)))
    if found.failures:
        lines.append(section(heading("Failed compiles"), *map(_failure, found.failures)))
    for title, names in (
        ("Constraints that make it fail", found.culprits),
        ("Constraints left out untried", found.untried),
    ):
        if names:
            lines.append(
                section(heading(title, str(len(names))), indented(listed(names, _MAX_NAMES)))
            )
    if found.notes:
        lines.append(section(heading("Notes"), *(indented(f"* {note}") for note in found.notes)))
    return Group(*lines)


def _device(found: Verification) -> str:
    kind = f" ({found.device_kind})" if found.device_kind else ""
    return f"{found.topology}{kind}"


def _totals(found: Verification) -> RenderableType:
    assert found.memory is not None
    rows = [
        (
            "bytes through collectives",
            format_bytes(found.predicted_bytes),
            format_bytes(found.compiled_bytes),
            signed_percent(found.bytes_difference),
        ),
        (
            "peak memory",
            format_bytes(found.memory.predicted_bytes),
            format_bytes(found.memory.compiled_bytes),
            signed_percent(found.memory_difference),
        ),
        (
            "of which arguments",
            format_bytes(found.memory.predicted_argument_bytes),
            format_bytes(found.memory.argument_bytes),
            "",
        ),
    ]
    if found.memory.predicted_host_bytes or found.memory.host_bytes:
        rows.append(
            (
                "host memory",
                format_bytes(found.memory.predicted_host_bytes),
                format_bytes(found.memory.host_bytes),
                signed_percent(found.host_difference),
            )
        )
    if found.time is not None:
        time = found.time
        rows += [
            _seconds("compute", time.predicted_compute_seconds, time.compute_seconds),
            _seconds(
                "compute at memory speed",
                time.predicted_compute_seconds,
                time.at_memory_speed_seconds,
            ),
            _seconds("links", time.predicted_link_seconds, time.link_seconds),
            _seconds("step, nothing overlapped", time.predicted_seconds, time.compiled_seconds),
            _seconds(
                "step, overlapped", time.predicted_overlapped_seconds, time.overlapped_seconds
            ),
        ]
    return table(("", ">predicted", ">compiled", ">difference"), rows)


def _seconds(name: str, predicted: float, compiled: float) -> tuple[str, str, str, str]:
    difference = "" if compiled == 0 else signed_percent(predicted / compiled - 1)
    return name, format_seconds(predicted), format_seconds(compiled), difference


def _collectives(found: Verification) -> RenderableType:
    rows = [_row(row) for row in found.collectives[:_MAX_ROWS]]
    if len(found.collectives) > _MAX_ROWS:
        rows.append((f"and {len(found.collectives) - _MAX_ROWS} more", "", "", "", "", "", ""))
    if not rows:
        return indented("none predicted, none compiled")
    return table(
        ("kind", "axes", ">group", ">predicted", ">compiled", ">difference", "how it runs"), rows
    )


def _row(row: CollectiveRow) -> tuple[str, ...]:
    return (
        row.kind,
        "?" if row.axes is None else ", ".join(row.axes),
        str(row.group_size),
        _amount(row.predicted_bytes, row.predicted_count),
        _amount(row.compiled_bytes, row.compiled_count),
        _row_difference(row),
        ", ".join(form for form in row.forms if form != PLAIN),
    )


def _amount(num_bytes: float, count: float) -> str:
    return f"{format_bytes(num_bytes)} in {format_count(count)}" if count else "-"


def _row_difference(row: CollectiveRow) -> str:
    if row.compiled_bytes == 0:
        return "not there"
    if row.predicted_bytes == 0:
        return "not planned"
    return signed_percent(row.predicted_bytes / row.compiled_bytes - 1)


def signed_percent(fraction: float) -> str:
    """`+3.1 %`."""
    return f"{100 * fraction:+.1f} %" if math.isfinite(fraction) else "not there"


def _failure(failure: FailedCompile) -> RenderableType:
    lines = [f"with {failure.num_constraints} constraints, {failure.status}: {failure.what}"]
    lines += [f"  {line}" for line in failure.last_lines]
    return indented("\n".join(lines))
