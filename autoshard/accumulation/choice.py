"""In how many microbatches a plan runs its step, as plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Microbatches:
    """Equal parts of a batch that a step runs over one after the other.

    Args:
        count: The parts.
        dims: Per flat argument, the dimension that examples are along; None where there is none.
    """

    count: int
    dims: tuple[int | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedCount:
    """A number of microbatches that the program was planned with.

    Args:
        count: Of microbatches.
        seconds: Predicted step time of the best plan found; None where none fits.
        peak_bytes: Its memory peak, or the least found where none fits.
    """

    count: int
    seconds: float | None
    peak_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Accumulation:
    """In how many microbatches a step runs.

    Args:
        microbatches: Those of the plan.
        batch_size: Examples of all of them.
        tried: The numbers that were planned; none where the number was given.
    """

    microbatches: Microbatches
    batch_size: int
    tried: tuple[TriedCount, ...] = ()
