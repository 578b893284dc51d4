"""A number of a compiler model, with what shows it."""

from __future__ import annotations

import datetime
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """A value that a compiler was seen to use.

    Args:
        value: A number, a boolean, a text, a list or a mapping of them.
        unit: Of the value: `bytes`, `cycles`, `boolean`, `op names`.
        probe: The program that shows it, or what it was read from.
        compiler: `libtpu 0.0.42`; None: no compiler was looked at, the value is assumed.
        date: Of the measurement.
    """

    value: object
    unit: str
    probe: str
    compiler: str | None
    date: datetime.date
