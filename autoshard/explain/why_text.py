"""Why a tensor is sharded as it is, as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TextIO

from rich.console import Group, RenderableType

from autoshard.report.layout import heading, indented, plain, print_on, render_text, section, table
from autoshard.report.quantities import format_bytes, format_percent, format_seconds
from autoshard.sharding.spec_text import format_spec

if TYPE_CHECKING:  # an explanation prints itself with what is here
    from autoshard.explain.explanation import (
        Alternative,
        CollectiveChange,
        Explanation,
        OpChange,
        Read,
    )

_MAX_CHANGES = 8
_MAX_ESTIMATES = 12
_MAX_READS = 20


def format_explanation(found: Explanation, width: int = 100) -> str:
    """Why a tensor is sharded as it is, as plain text."""
    return render_text(_report(found), width)


def print_explanation(found: Explanation, file: TextIO, width: int | None = None) -> None:
    """Print it, in colour and in its width if the file is a terminal."""
    print_on(_report(found), file, width)


def _report(found: Explanation) -> RenderableType:
    parts = [plain(f"{found.name}: {found.type_text}", "bold"), _summary(found)]
    parts += _alternatives(found)
    if found.estimates:
        parts.append(_estimates(found))
    if found.refusals:
        parts.append(_refusals(found))
    if found.reads:
        parts.append(_reads(found.reads))
    if found.notes:
        parts.append(section(heading("Notes"), *(indented(f"- {note}") for note in found.notes)))
    return Group(*parts)


def _summary(found: Explanation) -> RenderableType:
    rows = [
        ("sharding", f"{format_spec(found.chosen)}, {format_bytes(found.local_bytes)} per device"),
        ("plan", _plan_line(found)),
    ]
    rows += [("asked", text) for text in found.asked]
    rows += [("alike", f"{other.name}, {other.reason}") for other in found.alike]
    width = max(len(label) for label, _ in rows) + 2
    return Group(*(plain(f"{label:<{width}}{text}") for label, text in rows))


def _plan_line(found: Explanation) -> str:
    budget = (
        "" if found.memory_budget is None else f" of {format_bytes(found.memory_budget)} allowed"
    )
    proof = "proven the best" if found.gap <= 0 else f"proven within {format_percent(found.gap)}"
    return (
        f"{format_seconds(found.seconds)} a step ({proof}), memory peak"
        f" {format_bytes(found.peak_bytes)}{budget}"
    )


def _alternatives(found: Explanation) -> Iterator[RenderableType]:
    if not found.alternatives:
        return
    rows = [
        (
            format_spec(other.sharding),
            _extra_time(other, found.seconds),
            _extra_memory(other, found),
            _remark(other),
        )
        for other in found.alternatives
    ]
    remark = f"{found.num_shardings - 1} in all; everything else was free to follow"
    yield section(
        heading("Other shardings", remark),
        table(("sharding", ">step time", ">memory peak", "remark"), rows),
    )
    best = found.best_alternative
    if best is not None and best.changes:
        yield _changes(best)


def _extra_time(other: Alternative, seconds: float) -> str:
    if other.extra_seconds is None:
        return "-"
    return f"{_signed(other.extra_seconds)} ({_signed_percent(other.extra_seconds, seconds)})"


def _remark(other: Alternative) -> str:
    if other.status == "infeasible":
        return "no plan with it fits"
    if other.status == "no solution":
        return "none found in time"
    if other.status != "feasible":
        return ""
    if other.least_extra_seconds < 0:
        return f"not proven: may be up to {format_seconds(-other.least_extra_seconds)} faster"
    return f"not proven: at least {_signed(other.least_extra_seconds)}"


def _extra_memory(other: Alternative, found: Explanation) -> str:
    if not other.peak_bytes:
        return "-"
    extra = other.peak_bytes - found.peak_bytes
    sign = "+" if extra >= 0 else "-"
    return f"{format_bytes(other.peak_bytes)} ({sign}{format_bytes(abs(extra))})"


def _signed(seconds: float) -> str:
    sign = "-" if seconds < 0 else "+"
    return sign + format_seconds(abs(seconds))


def _signed_percent(extra: float, seconds: float) -> str:
    sign = "-" if extra < 0 else "+"
    return sign + format_percent(abs(extra) / seconds if seconds else float("inf"))


def _changes(best: Alternative) -> RenderableType:
    rows = [_change(change) for change in best.changes[:_MAX_CHANGES]]
    if len(best.changes) > _MAX_CHANGES:
        rest = best.changes[_MAX_CHANGES:]
        extra = sum(change.extra_seconds for change in rest)
        rows.append((f"and {len(rest)} more", "", "", _signed(extra), ""))
    return section(
        heading(f"Where {format_spec(best.sharding)} differs"),
        table(("line", ">plan", ">then", ">more", "collectives per device"), rows),
    )


def _change(change: OpChange) -> tuple[str, ...]:
    return (
        change.op,
        format_seconds(change.before_seconds),
        format_seconds(change.after_seconds),
        _signed(change.extra_seconds),
        "; ".join(map(_collective, change.collectives)),
    )


def _collective(change: CollectiveChange) -> str:
    before, after = (format_bytes(n) for n in (change.before_bytes, change.after_bytes))
    return f"{change.kind} over {', '.join(change.axes)}: {before} -> {after}"


def _estimates(found: Explanation) -> RenderableType:
    rows = [
        (format_spec(one.sharding), _signed(one.extra_seconds))
        for one in found.estimates[:_MAX_ESTIMATES]
    ]
    if len(found.estimates) > _MAX_ESTIMATES:
        rows.append((f"and {len(found.estimates) - _MAX_ESTIMATES} more", ""))
    return section(
        heading("The rest", "at a glance: only the ops next to it follow, memory not counted"),
        table(("sharding", ">step time"), rows),
    )


def _refusals(found: Explanation) -> RenderableType:
    rows = [
        (str(refusal.dimension), ", ".join(refusal.axes), refusal.reason)
        for refusal in found.refusals
    ]
    return section(heading("Cannot be"), table((">dimension", "sharded along", "because"), rows))


def _reads(reads: tuple[Read, ...]) -> RenderableType:
    seconds_by_row: dict[tuple[str, str, str], list[float]] = {}
    for read in reads:
        way = ", then ".join(read.steps) or "as it lies"
        row = (read.op, format_spec(read.wanted), way)
        seconds_by_row.setdefault(row, []).append(read.seconds)
    rows = [
        (
            f"{op} ({len(seconds)})" if len(seconds) > 1 else op,
            spec,
            way,
            format_seconds(sum(seconds)) if sum(seconds) else "",
        )
        for (op, spec, way), seconds in seconds_by_row.items()
    ]
    if len(rows) > _MAX_READS:
        rows[_MAX_READS:] = [(f"and {len(rows) - _MAX_READS} more", "", "", "")]
    return section(heading("Read by"), table(("op", "as", "brought there by", ">taking"), rows))
