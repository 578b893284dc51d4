from __future__ import annotations

import threading
import time

from hypothesis import given
from hypothesis import strategies as st

from solvers.incumbent import Incumbent


def test_the_cheapest_choices_are_kept_and_dearer_ones_refused() -> None:
    incumbent = Incumbent()
    assert incumbent.best() == (None, None)
    assert incumbent.offer([1, 2], 10)
    assert not incumbent.offer([0, 0], 10)
    assert not incumbent.offer([0, 0], 11)
    assert incumbent.offer([0, 1], 9)
    assert incumbent.best() == (9, (0, 1))


def test_choices_are_copied_so_that_the_caller_may_go_on_changing_them() -> None:
    incumbent = Incumbent()
    choices = [1, 2]
    incumbent.offer(choices, 3)
    choices[0] = 7
    assert incumbent.best() == (3, (1, 2))


def test_the_bound_only_rises_and_never_passes_the_cost() -> None:
    incumbent = Incumbent(lower_bound=2)
    incumbent.offer_bound(1)
    assert incumbent.bound() == 2
    incumbent.offer_bound(50)
    incumbent.offer([0], 40)
    assert incumbent.bound() == 40


def test_it_is_over_once_the_gap_is_proven() -> None:
    incumbent = Incumbent(relative_gap=0.1)
    incumbent.offer([0], 100)
    assert not incumbent.is_over()
    incumbent.offer_bound(89)
    assert not incumbent.is_over()
    incumbent.offer_bound(90)
    assert incumbent.is_over()


def test_it_is_over_when_stopped_out_of_time_or_proven_infeasible() -> None:
    stopped, late, impossible = Incumbent(), Incumbent(deadline=time.monotonic()), Incumbent()
    stopped.stop()
    impossible.prove_infeasible()
    assert stopped.is_over()
    assert late.is_over()
    assert late.seconds_left() == 0.0
    assert impossible.is_over()
    assert impossible.is_infeasible()


def test_nothing_cheaper_left_is_optimal_not_infeasible() -> None:
    incumbent = Incumbent()
    incumbent.offer([0], 5)
    incumbent.prove_infeasible()
    assert not incumbent.is_infeasible()
    assert incumbent.bound() == 5
    assert incumbent.is_over()


def test_the_smallest_peak_is_kept_with_its_choices() -> None:
    incumbent = Incumbent()
    incumbent.offer_least_peak([0], 9)
    incumbent.offer_least_peak([1], 8)
    incumbent.offer_least_peak([2], 8)
    incumbent.offer_peak_bound(7)
    incumbent.offer_peak_bound(3)
    assert incumbent.least_peak() == (8, (1,))
    assert incumbent.peak_bound() == 7


def test_each_improvement_is_told_with_its_source() -> None:
    told: list[tuple[str, int | None, int]] = []
    incumbent = Incumbent(on_change=lambda *change: told.append(change))
    incumbent.offer_bound(1, source="bounds")
    incumbent.offer([0], 8, source="moves")
    incumbent.offer([0], 9, source="moves")
    assert told == [("bounds", None, 1), ("moves", 8, 1)]


@given(costs=st.lists(st.lists(st.integers(0, 1000), max_size=20), min_size=1, max_size=4))
def test_threads_leave_the_least_cost_behind(costs: list[list[int]]) -> None:
    incumbent = Incumbent()

    def lane(offered: list[int]) -> None:
        for cost in offered:
            incumbent.offer([cost], cost)
            incumbent.offer_bound(-cost)

    threads = [threading.Thread(target=lane, args=(offered,)) for offered in costs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    every = [cost for offered in costs for cost in offered]
    assert incumbent.best() == ((min(every), (min(every),)) if every else (None, None))
