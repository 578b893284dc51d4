"""How long a compiled program takes: warmed up, repeated, told with its spread."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax

MOST_ROUNDS = 25
_LEAST_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Timing:
    """Of one run of an op.

    Attributes:
        seconds: The median.
        spread: Median distance of the runs from it, as a share of it.
    """

    seconds: float
    spread: float


def time_in_rounds(
    runs: Sequence[Callable[[], object]], *, until: float
) -> tuple[tuple[float, ...], ...]:
    """Seconds that each of several programs takes, in 3 to 25 rounds of all of them.

    So that what disturbs for a while disturbs few runs of many programs, not all runs of one.

    Args:
        runs: Each starts a program that has run before and returns its results, not waited for.
        until: When to begin no further round, by `time.monotonic`.

    Returns:
        Per program, the seconds of its runs.
    """
    rounds: list[list[float]] = []
    while len(rounds) < _LEAST_ROUNDS or (len(rounds) < MOST_ROUNDS and time.monotonic() < until):
        rounds.append([_seconds(run) for run in runs])
    return tuple(zip(*rounds, strict=True))


def _seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - started


def timing_of(taken: Sequence[float], *, overhead: Sequence[float], repeats: int) -> Timing | None:
    """What one repeat takes inside a program that runs it `repeats` times.

    Args:
        taken: Seconds of whole runs.
        overhead: Seconds of runs of a program that does nothing.
        repeats: Of the op inside the program.

    Returns:
        The timing; None where the program takes hardly longer than one that does nothing.
    """
    whole, start = statistics.median(taken), statistics.median(overhead)
    if whole < 1.2 * start:
        return None
    distance = statistics.median(abs(seconds - whole) for seconds in taken)
    return Timing((whole - start) / repeats, distance / (whole - start))
