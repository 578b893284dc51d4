from __future__ import annotations

import pytest

from autoshard.sharding.source import readable, source_with_caret


@pytest.mark.parametrize(
    ("text", "index", "shown"),
    [
        ("ab", 1, "line 1, column 2\n    ab\n     ^"),
        ("ab", 2, "line 1, column 3\n    ab\n      ^"),
        ("ab\ncd", 3, "line 2, column 1\n    cd\n    ^"),
        ("a\tb", 2, "line 1, column 3\n    a b\n      ^"),
        ("a\r\nb", 0, "line 1, column 1\n    a\n    ^"),
        ("a\x00\x1bb", 3, "line 1, column 4\n    a\ufffd\ufffdb\n       ^"),
        ("a\u2028b", 2, "line 1, column 3\n    a\ufffdb\n      ^"),
        ("\ud800b", 1, "line 1, column 2\n    \ufffdb\n     ^"),
        # wide characters take two columns, combining marks none
        ("網目x", 2, "line 1, column 3\n    網目x\n        ^"),
        ("e\u0301x", 2, "line 1, column 3\n    e\u0301x\n     ^"),
        ("\uff41x", 1, "line 1, column 2\n    \uff41x\n      ^"),
    ],
)
def test_the_caret_stands_under_the_place(text: str, index: int, shown: str) -> None:
    assert source_with_caret(text, index) == shown


def test_of_a_long_line_the_part_around_the_place_is_shown() -> None:
    text = "a" * 500 + "x" + "b" * 500
    assert source_with_caret(text, 500) == (
        f"line 1, column 501\n    ...{'a' * 100}x{'b' * 59}...\n    {' ' * 103}^"
    )
    assert source_with_caret(text, 0) == f"line 1, column 1\n    {'a' * 160}...\n    ^"
    assert source_with_caret("a" * 500, 500) == (
        f"line 1, column 501\n    ...{'a' * 100}\n    {' ' * 103}^"
    )


def test_quotes_in_messages_are_readable() -> None:
    assert readable("a\x07b") == "a\ufffdb"
    assert readable("a" * 61) == "a" * 60 + "..."
