"""States that lie in host memory between steps, as plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StreamedUpdate:
    """An update whose states lie in host memory, in a loop over parts of them.

    Args:
        arguments: Positions of the states among the flat arguments, ascending.
        results: By state, the position of the flat result that replaces it.
        dim: The dimension that is taken apart.
        parts: Parts of equal size, one run of the loop each.
        pieces: That devices cut the dimension into; each is taken apart by itself.
    """

    arguments: tuple[int, ...]
    results: tuple[int, ...]
    dim: int
    parts: int
    pieces: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadedStates:
    """States that a plan keeps in host memory between steps.

    Args:
        updates: Of the states, in program order.
        names: Of the states, in order of the arguments.
        local_bytes: Of them, on one device if they were there.
        seconds: That bringing them to the device and back takes in one step.
        num_candidates: Updates of the program whose states could lie there.
        on_device_peak_bytes: The least memory peak found with all states on the device.
    """

    updates: tuple[StreamedUpdate, ...]
    names: tuple[str, ...]
    local_bytes: int
    seconds: float
    num_candidates: int
    on_device_peak_bytes: int | None
