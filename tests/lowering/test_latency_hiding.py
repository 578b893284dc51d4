"""The order of kernels beside which collectives run."""

from __future__ import annotations

from hypothesis import given

from autoshard.lowering.latency_hiding import hiding_order
from autoshard.lowering.memory_scheduler import Work, memory_orders
from tests.lowering.works import assert_all_run, works


def ordered(found: list[Work]) -> list[int]:
    return hiding_order(found, memory_orders(found).places[0])


def test_a_kernel_that_nothing_waits_for_runs_beside_a_collective() -> None:
    start = Work(latency=20.0, microseconds=1.0)
    found = [start, Work((0,), microseconds=1.0, start=0), Work((1,)), Work(microseconds=20.0)]
    assert ordered(found) == [0, 3, 1, 2]


def test_of_two_kernels_that_is_put_beside_a_collective_which_lasts_as_long() -> None:
    found = [
        Work(latency=20.0, microseconds=1.0),
        Work((0,), microseconds=1.0, start=0),
        Work((1,)),
        Work(microseconds=90.0),
        Work(microseconds=20.0),
    ]
    assert ordered(found) == [0, 3, 4, 1, 2]


def test_one_collective_runs_at_a_time() -> None:
    found = [
        Work(latency=20.0, microseconds=1.0),
        Work((0,), microseconds=1.0, start=0),
        Work(latency=20.0, microseconds=1.0),
        Work((2,), microseconds=1.0, start=2),
        Work((1, 3)),
    ]
    order = ordered(found)
    assert abs(order.index(0) - order.index(1)) == 1
    assert abs(order.index(2) - order.index(3)) == 1


def test_what_waits_for_no_collective_runs_early() -> None:
    """Zeros that a scatter needs at the end are filled at the start of the program."""
    found = [
        Work(microseconds=5.0),
        Work((0,), latency=20.0, microseconds=1.0),
        Work((1,), microseconds=1.0, start=1),
        Work((2,), microseconds=5.0),
        Work(microseconds=1.0, num_bytes=8),
        Work((3, 4), microseconds=5.0),
    ]
    assert ordered(found).index(4) < ordered(found).index(2)


@given(works())
def test_all_runs_once_after_what_it_needs(found: list[Work]) -> None:
    assert_all_run(found, ordered(found))


@given(works())
def test_no_collective_starts_while_another_is_under_way(found: list[Work]) -> None:
    under_way = 0
    for place in ordered(found):
        under_way += bool(found[place].latency)
        assert under_way <= 1
        under_way -= found[place].start >= 0
