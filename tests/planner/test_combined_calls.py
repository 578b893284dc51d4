"""Collectives that share a call."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from autoshard.costing.combined_calls import combined_calls


def calls(
    needs: Sequence[Sequence[int]], keys: Mapping[int, Hashable], most: float = 8
) -> Mapping[int, int]:
    """Calls of collectives of one byte each."""
    return combined_calls(needs, [1] * len(needs), keys, most)


def test_sums_that_do_not_wait_for_one_another_are_one_call() -> None:
    assert calls([(), (0,), (0,), (2,)], {1: "sum", 3: "sum"}) == {1: 1, 3: 1}


def test_those_that_wait_for_one_another_are_not() -> None:
    assert calls([(), (0,), (1,), (2,)], {1: "sum", 3: "sum"}) == {1: 1, 3: 3}


def test_those_of_other_axes_or_types_are_not() -> None:
    assert calls([(), ()], {0: "x", 1: "y"}) == {0: 0, 1: 1}


def test_a_call_is_no_larger_than_the_compiler_allows_and_takes_the_last_first() -> None:
    sizes = [2.0, 9.0, 4.0, 20.0, 4.0]
    keys = dict.fromkeys(range(5), "sum")
    assert combined_calls([()] * 5, sizes, keys, 10) == {0: 0, 1: 1, 2: 0, 3: 3, 4: 0}
    assert set(combined_calls([()] * 5, sizes, keys, math.inf).values()) == {0}


@st.composite
def bodies(draw: st.DrawFn) -> tuple[list[list[int]], dict[int, Hashable]]:
    needs: list[list[int]] = []
    keys: dict[int, Hashable] = {}
    for place in range(draw(st.integers(1, 14))):
        earlier = st.lists(st.integers(0, max(place - 1, 0)), unique=True, max_size=2)
        needs.append(draw(earlier) if place else [])
        key = draw(st.sampled_from(["", "x", "y"]))
        if key:
            keys[place] = key
    return needs, keys


@given(bodies())
def test_no_call_waits_for_itself(found: tuple[list[list[int]], dict[int, Hashable]]) -> None:
    before, keys = found
    call_of = calls(before, keys, 99)
    units = [call_of.get(place, place) for place in range(len(before))]
    needs: dict[int, set[int]] = {unit: set() for unit in units}
    for place, needed in enumerate(before):
        needs[units[place]] |= {units[need] for need in needed}
    left = dict(needs)
    while left:
        ready = [unit for unit, needed in left.items() if not needed & left.keys()]
        assert ready, "calls that wait for one another"
        for unit in ready:
            del left[unit]
