"""A heavy matmul of a plan: how it runs, and how it could."""

from __future__ import annotations

from dataclasses import dataclass

from autoshard.loops.dot_schedule import DotSchedule


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedProduct:
    """A heavy matrix product, how it runs, and the best other way to run it there.

    Both ways take the operands as the plan has them and end in the same sharding. Seconds are of
    all runs, and count what is gathered; bytes are what is held beside operands and result.

    Args:
        equation: Its path.
        name: `dot_general`.
        source: `file.py:12 (function)` of the user's line, or "".
        result: Type of its result: `f32[8, 16]`.
        schedule: How it runs in steps; None where it runs at once.
        seconds: What it takes.
        extra_bytes: What it holds.
        other_seconds: The same for the best other way: at once if this one has steps, else in
            steps; None where there is no other.
        other_bytes: Likewise.
        other_fits: Whether there was room for the other way, all else being equal.
    """

    equation: str
    name: str
    source: str
    result: str
    schedule: DotSchedule | None
    seconds: float
    extra_bytes: int
    other_seconds: float | None
    other_bytes: int | None
    other_fits: bool
