"""Work that schedulers put in order, at random."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from hypothesis import strategies as st

from autoshard.lowering.memory_scheduler import Work


@st.composite
def works(draw: st.DrawFn) -> list[Work]:
    """Kernels and collectives, each after what it needs."""
    found: list[Work] = []
    for _ in range(draw(st.integers(1, 12))):
        readable = [place for place, one in enumerate(found) if not one.latency]
        needs = st.lists(st.sampled_from(readable or [0]), unique=True, max_size=3)
        needed = tuple(sorted(draw(needs))) if readable else ()
        num_bytes, is_kept = draw(st.integers(0, 9)), draw(st.booleans())
        microseconds = draw(st.sampled_from([0.01, 1.0, 10.0]))
        if draw(st.integers(0, 3)):
            found.append(Work(needed, num_bytes, is_kept, microseconds))
            continue
        found.append(Work(needed, num_bytes, is_kept, 1.0, draw(st.sampled_from([5.0, 50.0]))))
        found.append(Work((len(found) - 1,), 0, is_kept, 1.0, start=len(found) - 1))
    return found


def live_bytes(found: Sequence[Work], order: Sequence[int]) -> int:
    """The most that is there at one time in an order."""
    turn = {place: number for number, place in enumerate(order)}
    change = [0] * (len(order) + 1)
    for place, one in enumerate(found):
        readers = [turn[user] for user, other in enumerate(found) if place in other.needs]
        last = len(order) - 1 if one.is_kept else max(readers, default=turn[place])
        change[turn[place]] += one.num_bytes
        change[last + 1] -= one.num_bytes
    return max(accumulate(change))


def assert_all_run(found: Sequence[Work], order: Sequence[int]) -> None:
    """All run once, each after what it needs."""
    assert sorted(order) == list(range(len(found)))
    turn = {place: number for number, place in enumerate(order)}
    assert all(turn[need] < turn[place] for place, one in enumerate(found) for need in one.needs)
