"""In how many microbatches a step runs, as a line."""

from __future__ import annotations

from autoshard.accumulation.choice import Accumulation, TriedCount
from autoshard.report.quantities import format_bytes, format_seconds


def microbatches_rows(found: Accumulation | None) -> list[tuple[str, str]]:
    """A row of a table of totals; none for a step over the batch as a whole."""
    return [] if found is None else [("microbatches", microbatches_line(found))]


def microbatches_line(found: Accumulation) -> str:
    """The number of microbatches and their size, and what others come to."""
    count = found.microbatches.count
    line = f"{count} of {found.batch_size // count:,} examples each, totals added up"
    others = [_told(one) for one in found.tried if one.count != count]
    return f"{line}; {', '.join(others)}" if others else line


def _told(one: TriedCount) -> str:
    if one.seconds is None:
        return f"{one.count} at {format_bytes(one.peak_bytes)} would not fit"
    return f"{one.count} would take {format_seconds(one.seconds)}"
