"""Measuring families of probes within a time limit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import jax

from autoshard.apply.measuring.probes import Family, Probe, ProbeSizes
from autoshard.apply.measuring.programs import Program, empty_program, program_of
from autoshard.apply.measuring.timing import Timing, time_in_rounds, timing_of

_LEAST_PROBES = 4
_LEAST_WEIGHT = 6  # small families need rounds, too


@dataclass(frozen=True, slots=True)
class FamilyTimes:
    """What a family of probes took.

    Attributes:
        family: All its probes.
        timings: Those that were measured, in order.
        problem: Why others were not; empty where all were.
    """

    family: Family
    timings: tuple[tuple[Probe, Timing], ...]
    problem: str = ""


def measure_families(
    families: Iterable[Family],
    devices: tuple[jax.Device, ...],
    sizes: ProbeSizes,
    *,
    seconds: float,
    progress: Callable[[FamilyTimes, float], None] | None = None,
) -> tuple[FamilyTimes, ...]:
    """Measures families one after the other, each for its share of the time.

    Args:
        families: The most telling first.
        devices: All of them are at work at once.
        sizes: Tell roughly how long a probe takes.
        seconds: In all, compiling included; what is under way when they are over is ended.
        progress: Told of each family as it is done, and of the seconds passed.
    """
    started = time.monotonic()
    deadline = started + seconds
    empty = empty_program(devices)
    jax.block_until_ready(empty.run())
    waiting = list(families)
    done = []
    while waiting:
        weights = [_LEAST_WEIGHT + len(family) for family in waiting]
        share = weights[0] / sum(weights) * (deadline - time.monotonic())
        family = waiting.pop(0)
        now = time.monotonic()
        programs, problem = _programs(family, devices, sizes, now + share / 2, deadline)
        times = FamilyTimes(family, _timings(programs, empty, now + share), problem)
        done.append(times)
        if progress is not None:
            progress(times, time.monotonic() - started)
    return tuple(done)


def _programs(
    family: Family,
    devices: tuple[jax.Device, ...],
    sizes: ProbeSizes,
    until: float,
    deadline: float,
) -> tuple[list[tuple[Probe, Program]], str]:
    """Programs that have run once, until the time is over; four at least, if there is any time."""
    programs: list[tuple[Probe, Program]] = []
    problems = []
    for index, probe in enumerate(family):
        now = time.monotonic()
        if now >= deadline or (now >= until and index >= _LEAST_PROBES):
            problems.append(f"no time for {len(family) - index} of {len(family)} sizes")
            break
        try:
            program = program_of(probe, devices, sizes)
            jax.block_until_ready(program.run())
        except (jax.errors.JaxRuntimeError, NotImplementedError, TypeError) as error:
            problems.append(str(error).partition("\n")[0])
        else:
            programs.append((probe, program))
    return programs, "; ".join(dict.fromkeys(problems))


def _timings(
    programs: list[tuple[Probe, Program]], empty: Program, until: float
) -> tuple[tuple[Probe, Timing], ...]:
    """Timings of programs, those left out that take no longer than the empty one."""
    if not programs:
        return ()
    runs = [empty.run, *(program.run for _, program in programs)]
    overhead, *each = time_in_rounds(runs, until=until)
    timings = [
        (probe, timing_of(taken, overhead=overhead, repeats=program.repeats))
        for (probe, program), taken in zip(programs, each, strict=True)
    ]
    return tuple((probe, timing) for probe, timing in timings if timing is not None)
