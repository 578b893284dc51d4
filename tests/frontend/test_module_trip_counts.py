"""Counting the steps of a counter."""

from __future__ import annotations

import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.frontend.trip_counts import count_steps

COMPARE = {
    "LT": operator.lt,
    "LE": operator.le,
    "GT": operator.gt,
    "GE": operator.ge,
    "NE": operator.ne,
}
MOST = 200


@given(
    start=st.integers(-30, 30),
    stop=st.integers(-30, 30),
    step=st.integers(-5, 5),
    direction=st.sampled_from(sorted(COMPARE)),
)
def test_the_count_is_what_running_the_loop_gives(
    start: int, stop: int, step: int, direction: str
) -> None:
    runs, counter = 0, start
    while COMPARE[direction](counter, stop) and runs < MOST:
        counter += step
        runs += 1
    expected = None if runs == MOST else runs
    assert count_steps(start, stop, step, direction) == expected


@pytest.mark.parametrize("direction", ["EQ", "TOTALORDER"])
def test_other_comparisons_are_not_counted(direction: str) -> None:
    assert count_steps(0, 4, 1, direction) is None
