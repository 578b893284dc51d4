"""Which states lie in host memory between steps, as a line."""

from __future__ import annotations

from autoshard.offload.choice import OffloadedStates
from autoshard.report.quantities import format_bytes, format_seconds


def offloaded_rows(found: OffloadedStates | None) -> list[tuple[str, str]]:
    """A row of a table of totals; none for a step with all its states on the device."""
    return [] if found is None else [("on the host", offloaded_line(found))]


def offloaded_line(found: OffloadedStates) -> str:
    """How many states are there, of how many bytes, and what that costs."""
    count = len(found.names)
    return (
        f"{count} state{'' if count == 1 else 's'} between steps,"
        f" {format_bytes(found.local_bytes)} per device;"
        f" bringing them there and back takes {format_seconds(found.seconds)}"
    )
