"""Memory space assignment of buffers whose place can be told by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from autoshard.lowering.memory_space_assignment import Interval, Machine, Read, assign

NUM_TIMES = 40
CAPACITY = 100


def machine(*, longest_unread: float = 1e9, arithmetic: float = 0.0) -> Machine:
    """One byte takes a second, and each time computes so many."""
    return Machine(
        vmem_bytes=CAPACITY,
        copy_seconds_per_byte=1.0,
        longest_unread=longest_unread,
        repeat=np.ones(NUM_TIMES),
        arithmetic=np.full(NUM_TIMES, arithmetic),
    )


def buffer(num_bytes: int, start: int, *reads: int) -> Interval:
    return Interval(num_bytes, start, reads[-1] + 1, once(*reads))


def placed(intervals: list[Interval], on: Machine) -> list[int | None]:
    """When each buffer comes to HBM."""
    return [found.in_hbm for found in assign(intervals, on)]


def once(*times: int) -> tuple[Read, ...]:
    return tuple(Read(time, time, time) for time in times)


def test_what_has_room_together_is_in_vmem() -> None:
    assert placed([buffer(50, 0, 5), buffer(50, 1, 6)], machine()) == [None, None]


def test_one_byte_more_is_in_hbm() -> None:
    assert placed([buffer(51, 0, 5), buffer(50, 1, 6)], machine()) == [None, 1]


def test_the_buffer_that_is_read_more_often_goes_first() -> None:
    rarely, often = buffer(60, 0, 9), buffer(60, 1, 3, 5, 8)
    assert placed([rarely, often], machine()) == [0, None]


def test_one_that_waits_too_long_is_evicted_after_its_first_read() -> None:
    waits = [buffer(10, 0, 1, 30)]
    assert placed(waits, machine(longest_unread=28.5, arithmetic=1.0)) == [None]
    assert placed(waits, machine(longest_unread=28.0, arithmetic=1.0)) == [1]


def test_one_whose_first_read_is_too_far_is_written_to_hbm() -> None:
    waits = [buffer(10, 0, 29)]
    assert placed(waits, machine(longest_unread=28.5, arithmetic=1.0)) == [None]
    assert placed(waits, machine(longest_unread=28.0, arithmetic=1.0)) == [0]


def test_an_evicted_buffer_leaves_its_room_until_it_is_prefetched() -> None:
    waits, between = buffer(90, 0, 1, 30), buffer(90, 10, 12)
    found = placed([waits, between], machine(longest_unread=25.0, arithmetic=20.0))
    assert found == [1, None]


def test_a_prefetch_takes_room_of_buffers_that_save_less() -> None:
    weight = Interval(60, 0, NUM_TIMES, once(20, 21, 22), is_argument=True)
    computing = machine(arithmetic=5.0)
    assert placed([buffer(60, 19, 23)], computing) == [None]
    assert placed([weight, buffer(60, 19, 23)], computing)[1] == 19


def test_a_read_in_a_loop_counts_as_often_as_that_runs() -> None:
    repeat = np.ones(NUM_TIMES)
    repeat[20:25] = 50.0
    in_loop, twice = buffer(60, 2, 24), buffer(60, 1, 6, 25)
    alone = machine()
    looped = Machine(
        vmem_bytes=CAPACITY,
        copy_seconds_per_byte=1.0,
        longest_unread=alone.longest_unread,
        repeat=repeat,
        arithmetic=alone.arithmetic,
    )
    assert placed([in_loop, twice], alone) == [2, None]
    assert placed([in_loop, twice], looped) == [None, 1]


def test_a_slice_in_each_run_counts_for_less_and_nothing_waits_while_a_loop_reads() -> None:
    twice, waits = buffer(60, 1, 6, 25), Read(20, 24, 24)
    stack = Interval(60, 2, 25, (waits._replace(share=0.02),))
    looped = replace(machine(longest_unread=1e6), repeat=np.where(LOOP, 50.0, 1.0))
    assert placed([stack._replace(reads=(waits,)), twice], looped) == [None, 1]
    assert placed([stack, twice], looped) == [2, None]
    short = replace(machine(longest_unread=25.0, arithmetic=1.0), repeat=looped.repeat)
    assert placed([stack], short) == [None]


def test_of_what_a_loop_reads_that_goes_first_which_its_op_waits_for() -> None:
    arithmetic = np.where(np.arange(NUM_TIMES) == 21, 200.0, 0.0)
    looped = replace(machine(), arithmetic=arithmetic)
    computed, moved = (Interval(60, 0, 25, (Read(20, 24, at),)) for at in (21, 22))
    assert placed([computed, moved], looped) == [0, None]
    assert placed([moved, computed], looped) == [None, 0]


LOOP = (np.arange(NUM_TIMES) >= 20) & (np.arange(NUM_TIMES) < 25)


@st.composite
def buffers(draw: st.DrawFn) -> list[Interval]:
    found = []
    for _ in range(draw(st.integers(1, 12))):
        times = sorted(draw(st.sets(st.integers(0, NUM_TIMES - 1), min_size=2, max_size=5)))
        found.append(buffer(draw(st.integers(1, CAPACITY)), times[0], *times[1:]))
    return found


@given(found=buffers(), arithmetic=st.floats(0.0, 10.0))
def test_buffers_that_never_leave_vmem_fit_it(found: list[Interval], arithmetic: float) -> None:
    held = np.zeros(NUM_TIMES + 1)
    for one, start in zip(found, placed(found, machine(arithmetic=arithmetic)), strict=True):
        assert start is None or one.start <= start <= one.start + 1
        if start is None:
            for first, last in pairwise((one.start, *(read.end for read in one.reads))):
                held[first + (first != one.start) : last + 1] += one.num_bytes
    assert held.max() <= CAPACITY


@given(found=buffers())
def test_with_room_for_all_none_is_in_hbm(found: list[Interval]) -> None:
    small = [one._replace(num_bytes=max(1, one.num_bytes // 12)) for one in found]
    total = sum(one.num_bytes for one in small)
    assert total > CAPACITY or placed(small, machine()) == [None] * len(small)


def test_an_argument_that_is_there_before_takes_its_room_until_its_last_read() -> None:
    argument = Interval(60, 0, NUM_TIMES, once(2, 9), is_argument=True, is_there_before=True)
    before, after = buffer(50, 5, 7), buffer(50, 10, 12)
    assert placed([argument, before, after], machine()) == [0, 5, None]


def test_reads_that_find_a_buffer_are_those_it_stays_or_is_prefetched_for() -> None:
    waits, between = buffer(90, 0, 1, 30), buffer(90, 10, 12)
    evicting = machine(longest_unread=25.0, arithmetic=20.0)
    found = assign([waits, between], evicting)
    assert [one.in_vmem for one in found] == [once(1, 30), once(12)]
    late = Interval(CAPACITY, 0, NUM_TIMES, once(1, 39), is_argument=True)
    assert assign([late], machine(arithmetic=20.0))[0].in_vmem == once(39)
