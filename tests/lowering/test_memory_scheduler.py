"""The order that holds little memory."""

from __future__ import annotations

from hypothesis import given

from autoshard.lowering.memory_scheduler import Work, memory_order
from tests.lowering.works import assert_all_run, live_bytes, works


def test_what_frees_more_runs_first() -> None:
    found = [Work(num_bytes=4), Work((0,), 8), Work((0,), 1), Work((1, 2))]
    assert memory_order(found) == [0, 2, 1, 3]


def test_a_gradient_is_made_before_the_activation_of_the_layer_before_it() -> None:
    """Backward through three layers: each gradient frees the activation that it reads."""
    forward = [Work(num_bytes=4), Work((0,), 4), Work((1,), 4)]
    back = [Work((2,), 4), Work((1, 3), 1, is_kept=True), Work((3,), 4), Work((0, 5), 1, True)]
    order = memory_order([*forward, *back])
    assert order.index(4) < order.index(6)
    assert live_bytes([*forward, *back], order) == 16


@given(works())
def test_all_runs_once_after_what_it_needs(found: list[Work]) -> None:
    assert_all_run(found, memory_order(found))
