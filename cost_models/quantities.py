"""Numbers with a unit and the range in which they can be meant seriously.

A peak of `197` FLOP/s or a link of `50` bytes/s is a unit forgotten, not a slow machine: the ranges
here catch it and the message says which unit is expected.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True, slots=True)
class Quantity:
    """Unit of a number and the closed range it must lie in.

    Attributes:
        unit: As it reads in a sentence: "bytes per second".
        low: Smallest value accepted.
        high: Largest value accepted.
        example: A value written the way a file should have it.
    """

    unit: str
    low: float
    high: float
    example: str


FlopsPerSecond = Annotated[float, Quantity("FLOP per second", 1e6, 1e18, "197.0e+12")]
BytesPerSecond = Annotated[float, Quantity("bytes per second", 1e6, 1e15, "819.0e+9")]
ElementsPerSecond = Annotated[float, Quantity("elements per second", 1e6, 1e15, "2.6e+11")]
Bytes = Annotated[int, Quantity("bytes", 0, 1e15, "16_000_000_000")]
CapacityBytes = Annotated[int, Quantity("bytes", 1e6, 1e15, "16_000_000_000")]
Seconds = Annotated[float, Quantity("seconds", 0.0, 1.0, "1.0e-6")]
Fraction = Annotated[float, Quantity("a fraction of the peak", 1e-3, 1.0, "0.9")]
SmallFraction = Annotated[float, Quantity("a fraction of the peak", 1e-6, 1.0, "0.25")]
Hertz = Annotated[float, Quantity("cycles per second", 1e6, 1e11, "1.5e+9")]
Count = Annotated[int, Quantity("a whole number", 1, 1_000_000, "8")]
Index = Annotated[int, Quantity("a whole number", 0, 1_000_000, "3")]


def quantity_problem(value: float, quantity: Quantity) -> str:
    """What is wrong with `value` as that quantity; empty when nothing is."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"is {value}; expected a finite number of {quantity.unit}"
    if not quantity.low <= value <= quantity.high:
        return (
            f"is {value:g}; expected {quantity.unit} between {quantity.low:g} and "
            f"{quantity.high:g}, such as {quantity.example}"
        )
    return ""
