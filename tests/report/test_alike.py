"""Names gathered into ranges."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.report.alike import format_ranges, gather_alike


def gathered(*names: str) -> list[str]:
    return [name for name, _, _ in gather_alike((name, "") for name in names)]


def test_layers_become_a_range() -> None:
    names = [f"params['blocks'][{layer}]['w1']" for layer in range(32)]
    assert gathered(*names) == ["params['blocks'][0..31]['w1']"]


def test_missing_layers_are_not_claimed() -> None:
    assert gathered("w[0]", "w[1]", "w[5]") == ["w[0..1,5]"]


def test_items_of_another_kind_stay_apart() -> None:
    items = [("w[0]", "a"), ("w[1]", "b"), ("w[2]", "a")]
    assert gather_alike(items) == [("w[0,2]", "a", [0, 2]), ("w[1]", "b", [1])]


def test_the_number_of_a_word_is_no_index() -> None:
    assert gathered("p['w1']", "p['w2']") == ["p['w1']", "p['w2']"]


@pytest.mark.parametrize(
    ("first", "second", "both"),
    [
        ("p['layers_0']['w']", "p['layers_1']['w']", "p['layers_0..1']['w']"),
        ("p['0'].w", "p['1'].w", "p['0..1'].w"),
        ("state.layers[0].w", "state.layers[1].w", "state.layers[0..1].w"),
    ],
)
def test_indices_of_lists_keys_and_suffixes_count(first: str, second: str, both: str) -> None:
    assert gathered(first, second) == [both]


def test_two_numbers_that_form_no_rectangle_are_split() -> None:
    assert gathered("w[0][0]", "w[0][1]", "w[1][0]") == ["w[0][0..1]", "w[1][0]"]


@given(st.sets(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=12))
def test_ranges_stand_for_exactly_the_names_they_came_from(numbers: set[tuple[int, int]]) -> None:
    names = [f"w[{i}]['k_{j}']" for i, j in sorted(numbers)]
    stood_for = []
    for name, _, positions in gather_alike((name, "") for name in names):
        head, tail = name.removeprefix("w[").removesuffix("']").split("]['k_")
        spelled = {f"w[{i}]['k_{j}']" for i, j in product(_numbers(head), _numbers(tail))}
        assert spelled == {names[position] for position in positions}
        stood_for += positions
    assert sorted(stood_for) == list(range(len(names)))


@given(st.sets(st.integers(0, 50), min_size=1))
def test_ranges_spell_a_set_of_numbers(numbers: set[int]) -> None:
    assert _numbers(format_ranges(numbers)) == sorted(numbers)


def _numbers(text: str) -> list[int]:
    found: list[int] = []
    for run in text.split(","):
        first, _, last = run.partition("..")
        found += range(int(first), int(last or first) + 1)
    return found
