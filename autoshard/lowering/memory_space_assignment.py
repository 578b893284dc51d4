"""XLA's memory space assignment in small: the parts of a buffer's life that it is in VMEM.

Buffers take their turn by what VMEM saves them. One is in VMEM from its definition to its first
read if there is room all that time, and stays until the next read, unless a read is too far.
Otherwise it is written or evicted to HBM, and prefetched for reads that leave time for the copy.

Source: openxla/xla, `memory_space_assignment/algorithm.cc`, `cost_analysis.cc` and
`prefetch_interval_picker.cc`. Its repacking is taken to leave no gaps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

_OVERLAPS = (2.0, 1.0)
"""Seconds before its read at which a prefetch starts, in seconds of the copy: the first that fits.

Source: openxla/xla, `preferred_overlap_to_async_copy_ratio` and `min_overlap_to_async_copy_ratio`.
"""


class Read(NamedTuple):
    """A read of a buffer; one in a loop needs the buffer as long as that runs.

    Args:
        begin: Its time, or that of the first op of the loop.
        end: Its time, or that of the last op of the loop.
        at: Its time.
        share: Of the buffer that is read in one run of the loop.
    """

    begin: int
    end: int
    at: int
    share: float = 1.0


class Interval(NamedTuple):
    """A buffer that may be in VMEM.

    Args:
        num_bytes: On one device.
        start: Time at which it is written.
        stop: Time after which it is not needed.
        reads: In order.
        is_argument: It is in HBM from the start.
        is_there_before: The program before brings it to VMEM, where it stays until its last read.
    """

    num_bytes: int
    start: int
    stop: int
    reads: tuple[Read, ...]
    is_argument: bool = False
    is_there_before: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The device, and the work of a program on it, time by time.

    Args:
        vmem_bytes: Capacity of VMEM.
        copy_seconds_per_byte: Between HBM and VMEM.
        longest_unread: Seconds that a buffer waits in VMEM for a read.
        repeat: Runs in a step that are assumed of each time: `float64[num_times]`.
        arithmetic: Seconds of a matmul's arithmetic, or of a gather or scatter, at each time, in
            one run, 0 elsewhere: `float64[num_times]`.
    """

    vmem_bytes: int
    copy_seconds_per_byte: float
    longest_unread: float
    repeat: FloatArray
    arithmetic: FloatArray


class Assigned(NamedTuple):
    """Where a buffer is.

    Args:
        in_hbm: Time from which it is in HBM, until it is needed no more; None for VMEM alone.
        in_vmem: Reads that find it in VMEM.
    """

    in_hbm: int | None
    in_vmem: tuple[Read, ...]


def assign(intervals: Sequence[Interval], machine: Machine) -> list[Assigned]:
    """Where buffers are, in the order of their intervals."""
    timing = _Timing.of(intervals, machine)
    left = np.full(len(machine.repeat) + 1, machine.vmem_bytes, dtype=np.int64)
    found: dict[int, Assigned] = {}
    for one in intervals:
        if one.is_there_before:
            _takes(left, 0, one.reads[-1].end + 1, one.num_bytes)
    order = [timing.order(one) for one in intervals]
    for place in sorted(range(len(intervals)), key=order.__getitem__):
        one = intervals[place]
        there = Assigned(one.start, one.reads)
        found[place] = there if one.is_there_before else _place(one, timing, left)
    return [found[place] for place in range(len(intervals))]


def _accesses(one: Interval) -> Iterator[tuple[int, float]]:
    """Times at which a buffer is written or read, and the bytes of it that are in one run."""
    if not one.is_argument:
        yield one.start, float(one.num_bytes)
    yield from ((read.at, one.num_bytes * read.share) for read in one.reads)


@dataclass(frozen=True, slots=True)
class _Timing:
    """Seconds of a program, as XLA's cost analysis has them: arithmetic, or all bytes from HBM.

    Args:
        from_hbm: Of the bytes read and written at each time, in one run.
        elapsed: Until each time begins, in a step: `float64[num_times + 1]`.
    """

    machine: Machine
    from_hbm: FloatArray
    elapsed: FloatArray

    @staticmethod
    def of(intervals: Sequence[Interval], machine: Machine) -> _Timing:
        accessed = np.zeros(len(machine.repeat))
        for one in intervals:
            for time, num_bytes in _accesses(one):
                accessed[time] += num_bytes
        from_hbm = accessed * machine.copy_seconds_per_byte
        seconds = np.maximum(machine.arithmetic, from_hbm) * machine.repeat
        return _Timing(machine, from_hbm, np.concatenate([[0.0], np.cumsum(seconds)]))

    def between(self, start: int, stop: int) -> float:
        """Seconds after one time and before another, in one run of the loop around both."""
        runs = float(self.machine.repeat[start : stop + 1].min(initial=np.inf))
        seconds = self.elapsed[stop] - self.elapsed[min(start + 1, stop)]
        return float(seconds / max(runs, 1.0)) if stop > start else 0.0

    def before(self, read: int, seconds: float) -> int:
        """The latest time after which so many seconds pass before a read; -1 if there is none."""
        begins = self.elapsed[read] - seconds * max(self.machine.repeat[read], 1.0)
        return int(np.searchsorted(self.elapsed, begins, "right")) - 2

    def order(self, one: Interval) -> tuple[float, int, int, int, int]:
        """What decides the turn of a buffer: seconds saved over the root of its bytes, first."""
        benefit = self._benefit(one) / sqrt(max(one.num_bytes, 1))
        return -benefit, -one.num_bytes, one.start - one.stop, one.reads[-1].end, one.start

    def _benefit(self, one: Interval) -> float:
        saved = [self._saved(time, num_bytes) for time, num_bytes in _accesses(one)]
        return sum(more for more in saved if more > 0) or max(saved, default=0.0)

    def _saved(self, time: int, num_bytes: float) -> float:
        """Seconds at one time; those that the arithmetic is longer, negative."""
        memory, arithmetic = float(self.from_hbm[time]), float(self.machine.arithmetic[time])
        if memory <= arithmetic:
            return memory - arithmetic
        beside = memory - num_bytes * self.machine.copy_seconds_per_byte
        return (memory - max(arithmetic, beside)) * max(float(self.machine.repeat[time]), 1.0)


def _place(one: Interval, timing: _Timing, left: IntArray) -> Assigned:
    """Take room in VMEM for a buffer."""
    in_hbm = one.start if one.is_argument else None
    found: list[Read] = []
    in_vmem, last = not one.is_argument, one.start
    for read in one.reads:
        is_first = last == one.start
        stays = in_vmem and timing.between(last, read.begin) < timing.machine.longest_unread
        if not (
            stays and _takes(left, last if is_first else last + 1, read.end + 1, one.num_bytes)
        ):
            if in_hbm is None:
                in_hbm = one.start if is_first else one.start + 1
            in_vmem = _prefetches(one, timing, left, in_hbm, read)
        if in_vmem:
            found.append(read)
        last = read.end
    return Assigned(in_hbm, tuple(found))


def _prefetches(one: Interval, timing: _Timing, left: IntArray, in_hbm: int, read: Read) -> bool:
    seconds = one.num_bytes * timing.machine.copy_seconds_per_byte
    starts = (timing.before(read.begin, overlap * seconds) for overlap in _OVERLAPS)
    return any(
        start >= in_hbm and _takes(left, start, read.end + 1, one.num_bytes) for start in starts
    )


def _takes(left: IntArray, start: int, stop: int, num_bytes: int) -> bool:
    """True where so many bytes are left all the time; then they are taken."""
    beside = left[start:stop]
    if beside.size and beside.min() < num_bytes:
        return False
    beside -= num_bytes
    return True
