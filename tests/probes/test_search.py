"""The search for a largest size: exact, and in few rounds."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.probes.search import largest


@given(
    least=st.integers(1, 50),
    width=st.integers(0, 500),
    threshold=st.integers(0, 600),
    at_once=st.integers(2, 8),
)
def test_the_size_found_is_the_largest_that_holds(
    least: int, width: int, threshold: int, at_once: int
) -> None:
    most = least + width

    def holding(sizes: Sequence[int]) -> list[int]:
        assert 1 <= len(sizes) <= at_once
        assert list(sizes) == sorted(set(sizes))
        assert least <= sizes[0]
        assert sizes[-1] <= most
        return [size for size in sizes if size <= threshold]

    wanted = min(threshold, most) if threshold >= least else None
    assert largest(least, most, holding, at_once=at_once) == wanted


def test_160_sizes_take_three_rounds_of_six() -> None:
    rounds: list[list[int]] = []

    def holding(sizes: Sequence[int]) -> list[int]:
        rounds.append(list(sizes))
        return [size for size in sizes if size <= 112]

    assert largest(1, 159, holding) == 112
    assert len(rounds) == 3


def test_a_size_that_holds_above_one_that_does_not_is_no_threshold() -> None:
    with pytest.raises(ValueError, match=r"only \[3\] hold: there is no largest one below"):
        largest(1, 4, lambda _: [3])
