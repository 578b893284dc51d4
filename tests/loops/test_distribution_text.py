"""Tensor distributions as text: `T xy -> xy0 M`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.errors import ShardingError
from autoshard.loops import (
    BROADCAST,
    Distribution,
    Fixed,
    Named,
    format_distribution,
    parse_distribution,
)
from autoshard.loops.distribution import MachineDim
from tests.loops.distributions import distributions


def one_level(dims: str, *entries: MachineDim) -> Distribution:
    return Distribution("T", tuple(dims), (entries,))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("T x -> x M", one_level("x", Named("x"))),
        ("T xy -> x M", one_level("xy", Named("x"))),
        ("T xy -> y M", one_level("xy", Named("y"))),
        ("T xy -> xy M", one_level("xy", Named("x"), Named("y"))),
        ("T xy -> xy0 M", one_level("xy", Named("x"), Named("y"), Fixed(0))),
        ("T xy -> xy* M", one_level("xy", Named("x"), Named("y"), BROADCAST)),
        ("T xyz -> xy M", one_level("xyz", Named("x"), Named("y"))),
        ("T xy -> [12]y M", one_level("xy", Fixed(12), Named("y"))),
        ("T xy -> x%y%[4]1 M", one_level("xy", Named("x", 1), Named("y", 4), Fixed(1))),
        ("a -> ** M", one_level("", BROADCAST, BROADCAST)),
    ],
)
def test_a_distribution_prints_in_the_form_it_is_read(text: str, value: Distribution) -> None:
    read = parse_distribution(text)
    assert (read.dims, read.levels) == (value.dims, value.levels)
    assert format_distribution(read) == text


def test_a_further_level_cuts_what_the_first_left_as_copies() -> None:
    read = parse_distribution("T xy -> xy*, **x M")
    assert read.levels == (
        (Named("x"), Named("y"), BROADCAST),
        (BROADCAST, BROADCAST, Named("x")),
    )
    assert [cut.machine_dim for cut in read.cuts(0)] == [0, 2]


def test_the_arrow_of_the_literature_and_blanks_are_read_too() -> None:
    assert parse_distribution(" T  xy  ↦  x0 M ") == parse_distribution("T xy -> x0 M")


@given(distributions())
def test_what_is_printed_is_read_back(value: Distribution) -> None:
    assert parse_distribution(format_distribution(value)) == value


@given(st.text(alphabet="Txy0*%[],-> M", max_size=16))
def test_any_text_is_read_or_refused_with_a_place(text: str) -> None:
    where = ""
    try:
        value = parse_distribution(text)
    except ShardingError as error:
        where = error.where
    assert "line 1" in where or parse_distribution(format_distribution(value)) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "T xy -> xz M",
            "tensor T has no dimension z; its dimensions are: x, y\n"
            "  where: line 1, column 10\n"
            "    T xy -> xz M\n"
            "             ^\n"
            "  fix: the machine side takes its names from the tensor side",
        ),
        (
            "T xy -> xx M",
            "dimension x is named twice\n"
            "  where: line 1, column 10\n"
            "    T xy -> xx M\n"
            "             ^\n"
            "  fix: cut it a second time in a level of its own, as in `T xy -> xy*, **x M`",
        ),
        (
            "T xx -> x M",
            "dimension x is named twice\n"
            "  where: line 1, column 4\n"
            "    T xx -> x M\n"
            "       ^\n"
            "  fix: give every dimension of the tensor a letter of its own",
        ),
        (
            "T xy -> xy",
            "expected the name of the machine, found the end\n"
            "  where: line 1, column 11\n"
            "    T xy -> xy\n"
            "              ^\n"
            "  fix: end with a name, as in `T xy -> xy M`",
        ),
        (
            "T xy xy M",
            "expected `->`, found `xy`\n  where: line 1, column 6\n    T xy xy M\n         ^",
        ),
        (
            "T xy -> xy, *x M",
            "machine dimension 1 is used by two levels\n"
            "  where: line 1, column 14\n"
            "    T xy -> xy, *x M\n"
            "                 ^\n"
            "  fix: write * for it in all levels but one",
        ),
        (
            "T xy -> xy*, ** M",
            "this level has 2 entries and the first 3\n"
            "  where: line 1, column 14\n"
            "    T xy -> xy*, ** M\n"
            "                 ^\n"
            "  fix: each level has one entry for each dimension of the machine",
        ),
        (
            "T xy -> x[1y M",
            "expected `]` after the number\n"
            "  where: line 1, column 12\n"
            "    T xy -> x[1y M\n"
            "               ^\n"
            "  fix: as in [12]",
        ),
        (
            "T xy -> x%[0] M",
            "runs of 0 cannot be dealt out\n"
            "  where: line 1, column 12\n"
            "    T xy -> x%[0] M\n"
            "               ^\n"
            "  fix: write x%[4]",
        ),
        (
            "T xy -> x? M",
            "expected a dimension, a coordinate or `*`, found `?`\n"
            "  where: line 1, column 10\n"
            "    T xy -> x? M\n"
            "             ^\n"
            "  fix: an entry is a letter of the tensor, a digit, [12], or *",
        ),
    ],
)
def test_a_text_that_is_no_distribution_is_refused_with_a_caret(text: str, message: str) -> None:
    with pytest.raises(ShardingError) as caught:
        parse_distribution(text)
    assert str(caught.value) == message


def test_a_distribution_made_by_hand_is_held_to_the_same_rules() -> None:
    with pytest.raises(ShardingError, match="tensor T has no dimension z"):
        one_level("xy", Named("z"))
    with pytest.raises(ShardingError, match="is not one letter"):
        Named("row")
