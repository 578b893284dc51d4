"""Collectives that share a call."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from autoshard.lowering.combined_calls import combined_calls
from autoshard.lowering.schedule import Lane, Task


def kernel(*needs: int) -> Task:
    return Task(1.0, Lane.COMPUTE, needs)


def sent(*needs: int, num_bytes: int = 1) -> Task:
    return Task(1.0, Lane.NETWORK, needs, num_bytes=num_bytes)


def test_sums_that_do_not_wait_for_one_another_are_one_call() -> None:
    tasks = [kernel(), sent(0), kernel(0), sent(2)]
    assert combined_calls(tasks, {1: "sum", 3: "sum"}, 8) == {1: 1, 3: 1}


def test_those_that_wait_for_one_another_are_not() -> None:
    tasks = [kernel(), sent(0), kernel(1), sent(2)]
    assert combined_calls(tasks, {1: "sum", 3: "sum"}, 8) == {1: 1, 3: 3}


def test_those_of_other_axes_or_types_are_not() -> None:
    tasks = [sent(), sent()]
    assert combined_calls(tasks, {0: "x", 1: "y"}, 8) == {0: 0, 1: 1}


def test_a_call_is_no_larger_than_the_compiler_allows_and_takes_the_last_first() -> None:
    tasks = [sent(num_bytes=3), sent(num_bytes=3), sent(num_bytes=3)]
    assert combined_calls(tasks, dict.fromkeys(range(3), "sum"), 6) == {0: 0, 1: 1, 2: 1}


@st.composite
def bodies(draw: st.DrawFn) -> tuple[list[Task], dict[int, str]]:
    tasks: list[Task] = []
    keys: dict[int, str] = {}
    for place in range(draw(st.integers(1, 14))):
        earlier = st.lists(st.integers(0, max(place - 1, 0)), unique=True, max_size=2)
        needs = draw(earlier) if place else []
        key = draw(st.sampled_from(["", "x", "y"]))
        tasks.append(sent(*needs) if key else kernel(*needs))
        if key:
            keys[place] = key
    return tasks, keys


@given(bodies())
def test_no_call_waits_for_itself(found: tuple[list[Task], dict[int, str]]) -> None:
    tasks, keys = found
    call_of = combined_calls(tasks, keys, 99)
    units = [call_of.get(place, place) for place in range(len(tasks))]
    needs: dict[int, set[int]] = {unit: set() for unit in units}
    for place, task in enumerate(tasks):
        needs[units[place]] |= {units[need] for need in task.needs}
    left = dict(needs)
    while left:
        ready = [unit for unit, needed in left.items() if not needed & left.keys()]
        assert ready, "calls that wait for one another"
        for unit in ready:
            del left[unit]
