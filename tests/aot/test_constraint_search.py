"""A large set of constraints that compiles is found, and what makes the rest fail is named."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from autoshard.aot.constraint_search import find_compiling_set

PATHS = tuple(f"{number}.0" for number in range(64))


def test_one_culprit_among_many_is_found_and_all_others_are_kept() -> None:
    found = find_compiling_set(PATHS, lambda chosen: "37.0" not in chosen, 100)
    assert found is not None
    assert found.culprits == ("37.0",)
    assert found.kept == tuple(path for path in PATHS if path != "37.0")
    assert (found.untried, found.num_tries) == ((), 13)  # 1 + 2 log2(64)


def test_a_program_that_fails_without_constraints_has_no_set_that_compiles() -> None:
    assert find_compiling_set(PATHS, lambda _: False, 100) is None


def test_where_only_the_number_matters_as_many_as_go_are_kept() -> None:
    found = find_compiling_set(PATHS, lambda chosen: len(chosen) <= 40, 100)
    assert found is not None
    assert len(found.kept) == 40


def test_tries_are_capped_and_what_was_not_tried_is_told() -> None:
    tried = []

    def compiles(chosen: tuple[str, ...]) -> bool:
        tried.append(chosen)
        return "0.0" not in chosen

    found = find_compiling_set(PATHS, compiles, 4)
    assert found is not None
    assert found.num_tries == len(tried) == 4
    assert found.kept == ()  # 32, 16 and 8 constraints were tried, the culprit in each
    assert found.untried == PATHS


def test_when_time_is_up_nothing_more_is_tried_and_nobody_is_blamed() -> None:
    tried: list[tuple[str, ...]] = []

    def compiles(chosen: tuple[str, ...]) -> bool:
        tried.append(chosen)
        return len(tried) < 3  # the third is ended as time is up

    found = find_compiling_set(PATHS, compiles, 100, lambda: len(tried) >= 3)
    assert found is not None
    assert found.num_tries == len(tried) == 3
    assert found.kept == PATHS[: len(PATHS) // 2]
    assert (found.culprits, found.untried) == ((), PATHS[len(PATHS) // 2 :])


def test_a_single_constraint_that_fails_is_the_culprit() -> None:
    found = find_compiling_set(("7.0",), lambda chosen: not chosen, 3)
    assert found is not None
    assert (found.kept, found.culprits, found.num_tries) == ((), ("7.0",), 1)


@given(
    bad=st.sets(st.integers(0, 15), min_size=1),
    most=st.integers(1, 40),
)
def test_what_is_kept_compiles_and_nothing_is_lost(bad: set[int], most: int) -> None:
    paths = PATHS[:16]
    culprits = {paths[number] for number in bad}
    found = find_compiling_set(paths, culprits.isdisjoint, most)
    assert found is not None
    assert culprits.isdisjoint(found.kept)
    assert set(found.culprits) <= culprits
    assert sorted((*found.kept, *found.culprits, *found.untried)) == sorted(paths)
    assert found.num_tries <= most
