from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers import FormatError, Problem
from solvers.formats.integer_lists import SHORTEST, IntegerLists, loads
from solvers.formats.iopddl import parse_iopddl
from solvers.formats.native import format_problem, parse_problem
from tests.solvers import test_iopddl, test_native_format
from tests.solvers.mutations import mutated

NOT_JSON = (json.JSONDecodeError, UnicodeDecodeError)
SPACES = 70  # of indentation: every list is long text then


def listed(document: Any) -> Any:
    """The document as `json.loads` would have it."""
    if isinstance(document, IntegerLists):
        return document.listed()
    if isinstance(document, dict):
        return {key: listed(value) for key, value in document.items()}
    if isinstance(document, list):
        return [listed(value) for value in document]
    return document


numbers = st.integers(0, 2**63 - 1) | st.integers(-2, 2**64)
values = st.recursive(
    st.none() | st.booleans() | numbers | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(st.integers(0, 2**63 - 1), max_size=5)
        | st.lists(st.lists(numbers, max_size=3), max_size=4)
        | st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(document=values, indent=st.sampled_from([None, 1, SPACES]))
def test_a_document_is_what_json_says(document: Any, indent: int | None) -> None:
    text = json.dumps(document, indent=indent).encode()
    assert listed(loads(text)) == json.loads(text)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_damaged_text_is_refused_where_json_refuses_it(data: st.DataObject) -> None:
    text = json.dumps({"a": [list(range(30)), [5]], "b": [1] * 40, "c": '"\\'}, indent=1).encode()
    at = data.draw(st.integers(0, len(text) - 1))
    text = text[:at] + data.draw(st.sampled_from([b"", b"0", b"-", b".", b"[", b'"', b"\\", b"\0"]))
    text += json.dumps({"a": [1] * 40}).encode()[at + 1 :] if data.draw(st.booleans()) else b""
    try:
        expected = json.loads(text)
    except ValueError as error:
        expected_error = error
        with pytest.raises(NOT_JSON) as refused:
            loads(text)
        assert str(refused.value) == str(expected_error)
    else:
        assert listed(loads(text)) == expected


@pytest.mark.parametrize(
    ("inner", "is_read_here"),
    [
        ("1, 2", True),
        ("[1, 2], [], [0]", True),
        (str(2**63 - 1), True),
        (str(2**63), False),
        ("9" * 19, False),
        ("9" * 20, False),
        ("-1", False),
        ("1.0", False),
        ("1e2", False),
        ("[[1]]", False),
        ("[1], 2", False),
        ("1, [2]", False),
        ("true", False),
    ],
)
def test_what_is_read_straight_into_arrays(inner: str, is_read_here: bool) -> None:
    text = f'{{"key": [{" " * SHORTEST}{inner}]}}'.encode()
    assert isinstance(loads(text)["key"], IntegerLists) is is_read_here
    assert listed(loads(text)) == json.loads(text)


@pytest.mark.parametrize("inner", ["01", "1,", ",1", "1 2", "[1,]", "[1],", "1}", "+1", "\x0b1"])
def test_lists_that_are_not_json_are_refused(inner: str) -> None:
    with pytest.raises(NOT_JSON):
        loads(f'{{"key": [{" " * SHORTEST}{inner}]}}'.encode())


def test_a_list_that_does_not_end_is_refused() -> None:
    for end in range(9):
        with pytest.raises(NOT_JSON):
            loads(b'{"key": [[' + b"1, " * SHORTEST + b"[12]] ,}"[:end])


def test_a_mark_in_the_text_is_not_taken_for_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    marks = iter(["taken", "free"])
    monkeypatch.setattr("secrets.token_hex", lambda _: next(marks))
    document = {"name": "taken 0", "key": [7] * SHORTEST}
    assert listed(loads(json.dumps(document).encode())) == document


def outcome(parse: Any, document: Any) -> Any:
    """What a parser makes of a document: another document, or the message."""
    try:
        problem: Problem = parse(document)
    except FormatError as error:
        return str(error)
    return format_problem(problem)


@settings(max_examples=300, deadline=None)
@given(document=mutated(test_iopddl.EXAMPLE))
def test_an_instance_is_read_or_refused_alike_either_way(document: Any) -> None:
    text = json.dumps(document, indent=SPACES).encode()
    assert outcome(parse_iopddl, loads(text)) == outcome(parse_iopddl, json.loads(text))


@settings(max_examples=300, deadline=None)
@given(document=mutated(test_native_format.EXAMPLE))
def test_a_problem_is_read_or_refused_alike_either_way(document: Any) -> None:
    text = json.dumps(document, indent=SPACES).encode()
    assert outcome(parse_problem, loads(text)) == outcome(parse_problem, json.loads(text))
