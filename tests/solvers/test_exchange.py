from __future__ import annotations

import threading
import time

from hypothesis import given
from hypothesis import strategies as st

from solvers.exchange import Exchange


def test_the_cheapest_choices_are_kept_and_dearer_ones_refused() -> None:
    exchange = Exchange()
    assert exchange.best() == (None, None)
    assert exchange.offer([1, 2], 10)
    assert not exchange.offer([0, 0], 10)
    assert not exchange.offer([0, 0], 11)
    assert exchange.offer([0, 1], 9)
    assert exchange.best() == (9, (0, 1))


def test_choices_are_copied_so_that_the_caller_may_go_on_changing_them() -> None:
    exchange = Exchange()
    choices = [1, 2]
    exchange.offer(choices, 3)
    choices[0] = 7
    assert exchange.best() == (3, (1, 2))


def test_the_bound_only_rises_and_never_passes_the_cost() -> None:
    exchange = Exchange(lower_bound=2)
    exchange.offer_bound(1)
    assert exchange.bound() == 2
    exchange.offer_bound(50)
    exchange.offer([0], 40)
    assert exchange.bound() == 40


def test_it_is_over_once_the_gap_is_proven() -> None:
    exchange = Exchange(relative_gap=0.1)
    exchange.offer([0], 100)
    assert not exchange.is_over()
    exchange.offer_bound(89)
    assert not exchange.is_over()
    exchange.offer_bound(90)
    assert exchange.is_over()


def test_it_is_over_when_stopped_out_of_time_or_proven_infeasible() -> None:
    stopped, late, impossible = Exchange(), Exchange(deadline=time.monotonic()), Exchange()
    stopped.stop()
    impossible.prove_infeasible()
    assert stopped.is_over()
    assert late.is_over()
    assert late.seconds_left() == 0.0
    assert impossible.is_over()
    assert impossible.is_infeasible()


def test_nothing_cheaper_left_is_optimal_not_infeasible() -> None:
    exchange = Exchange()
    exchange.offer([0], 5)
    exchange.prove_infeasible()
    assert not exchange.is_infeasible()
    assert exchange.bound() == 5
    assert exchange.is_over()


def test_the_smallest_peak_is_kept_with_its_choices() -> None:
    exchange = Exchange()
    exchange.offer_least_peak([0], 9)
    exchange.offer_least_peak([1], 8)
    exchange.offer_least_peak([2], 8)
    exchange.offer_peak_bound(7)
    exchange.offer_peak_bound(3)
    assert exchange.least_peak() == (8, (1,))
    assert exchange.peak_bound() == 7


def test_each_improvement_is_told_with_its_source() -> None:
    told: list[tuple[str, int | None, int]] = []
    exchange = Exchange(on_change=lambda *change: told.append(change))
    exchange.offer_bound(1, source="bounds")
    exchange.offer([0], 8, source="moves")
    exchange.offer([0], 9, source="moves")
    assert told == [("bounds", None, 1), ("moves", 8, 1)]


@given(costs=st.lists(st.lists(st.integers(0, 1000), max_size=20), min_size=1, max_size=4))
def test_threads_leave_the_least_cost_behind(costs: list[list[int]]) -> None:
    exchange = Exchange()

    def lane(offered: list[int]) -> None:
        for cost in offered:
            exchange.offer([cost], cost)
            exchange.offer_bound(-cost)

    threads = [threading.Thread(target=lane, args=(offered,)) for offered in costs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    every = [cost for offered in costs for cost in offered]
    assert exchange.best() == ((min(every), (min(every),)) if every else (None, None))
