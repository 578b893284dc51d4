"""Index notation: `A(i,j) += B(i,k) * C(k,j)`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.errors import ScheduleError
from autoshard.loops import Access, Statement, parse_statement


@pytest.mark.parametrize(
    ("text", "einsum", "summed"),
    [
        ("A(i,j) += B(i,k) * C(k,j)", "ac,cb->ab", ("k",)),
        ("A(b,i,j) += B(b,i,k) * C(b,k,j)", "abd,adc->abc", ("k",)),
        ("A(i,l) += B(i,j,k) * C(j,l) * D(k,l)", "acd,cb,db->ab", ("j", "k")),
        ("A(i,j,l) += B(i,j,k) * C(k,l)", "abd,dc->abc", ("k",)),
        ("a() += B(i,j) * C(i,j)", "ab,ab->", ("i", "j")),
        ("A(j,i) += B(i,j)", "ba->ab", ()),
    ],
)
def test_a_statement_is_an_einsum(text: str, einsum: str, summed: tuple[str, ...]) -> None:
    read = parse_statement(text)
    assert str(read) == text
    assert read.einsum_text() == einsum
    assert read.summed == summed


def test_an_equals_sign_means_the_same() -> None:
    assert parse_statement("A(i) = B(i,j)") == parse_statement("A(i) += B(i,j)")


names = st.lists(st.sampled_from("ijkl"), unique=True, max_size=3).map(tuple)


@given(names, names)
def test_what_is_printed_is_read_back(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    result = tuple(dict.fromkeys((*one, *other)))[:3]
    statement = Statement(Access("A", result), (Access("B", one), Access("C", other)))
    assert parse_statement(str(statement)) == statement


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "A(i,j) + B(i,k)",
            "expected `+=`, found `+`\n"
            "  where: line 1, column 8\n"
            "    A(i,j) + B(i,k)\n"
            "           ^\n"
            "  fix: as in `A(i,j) += B(i,k) * C(k,j)`",
        ),
        (
            "A(i,j) += B(i,k) C(k,j)",
            "expected `*` or the end, found `C`\n"
            "  where: line 1, column 18\n"
            "    A(i,j) += B(i,k) C(k,j)\n"
            "                     ^\n"
            "  fix: a statement is one product of tensors",
        ),
        (
            "a += B(i)",
            "expected `(`, found `+=`\n"
            "  where: line 1, column 3\n"
            "    a += B(i)\n"
            "      ^\n"
            "  fix: a scalar is written with empty parentheses, as in `a()`",
        ),
        (
            "A(i,) += B(i)",
            "expected a variable, found `)`\n"
            "  where: line 1, column 5\n"
            "    A(i,) += B(i)\n"
            "        ^",
        ),
        (
            "A(i) += B(j)",
            "variable i of the result is in no operand\n"
            "  where: A(i) += B(j)\n"
            "  fix: use i on the right side too, or drop it",
        ),
        (
            "A(i) += A(i)",
            "tensor A stands twice\n"
            "  where: A(i) += A(i)\n"
            "  fix: give each place a name of its own; the same array may be passed for both",
        ),
        (
            "A(i) += B(i,i)",
            "B(i,i) has one variable twice\n"
            "  where: A(i) += B(i,i)\n"
            "  fix: take the diagonal beforehand",
        ),
    ],
)
def test_a_text_that_is_no_statement_is_refused(text: str, message: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        parse_statement(text)
    assert str(caught.value) == message


def test_shapes_give_the_ranges_or_are_refused() -> None:
    matmul = parse_statement("A(i,j) += B(i,k) * C(k,j)")
    assert matmul.extents_of([(2, 3), (3, 4)]) == {"i": 2, "k": 3, "j": 4}
    with pytest.raises(ScheduleError) as caught:
        matmul.extents_of([(2, 3), (4, 5)])
    assert str(caught.value) == (
        "variable k has size 3 and, in C(k,j), 4\n"
        "  where: A(i,j) += B(i,k) * C(k,j)\n"
        "  fix: give arrays that agree on it"
    )
