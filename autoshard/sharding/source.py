"""Pointing into text a user wrote: the line and a caret under the place."""

from __future__ import annotations

import unicodedata

_LONGEST_LINE = 160
_SHOWN_BEFORE = 100
_LONGEST_QUOTE = 60


def source_with_caret(text: str, index: int) -> str:
    """The line of `text` that holds position `index`, with a caret under that position.

    Characters a terminal would not show are replaced, wide ones count as two columns under which
    the caret stands, and of a long line only the part around the position is shown.

    Args:
        text: All of the source.
        index: 0 to `len(text)`; the end stands for something missing there.

    Returns:
        Three lines: line and column counted from 1, the source line, the caret.
    """
    line_start = text.rfind("\n", 0, index) + 1
    line_end = text.find("\n", index)
    line = text[line_start : line_end if line_end >= 0 else len(text)].removesuffix("\r")
    column = index - line_start
    line_number = text.count("\n", 0, line_start) + 1
    cut = max(0, column - _SHOWN_BEFORE) if len(line) > _LONGEST_LINE else 0
    before = ("..." if cut else "") + _printable(line[cut:column])
    after = _printable(line[column : cut + _LONGEST_LINE])
    if len(line) > cut + _LONGEST_LINE:
        after += "..."
    indent = " " * sum(map(_columns, before)) + " " * max(0, column - len(line))
    return f"line {line_number}, column {column + 1}\n    {before}{after}\n    {indent}^"


def readable(text: str) -> str:
    """Text as part of a message: nothing a terminal would not show, and not too long."""
    shown = _printable(text[:_LONGEST_QUOTE])
    return shown + "..." if len(text) > _LONGEST_QUOTE else shown


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else " " if char in "\t\r" else "\N{REPLACEMENT CHARACTER}"
        for char in text
    )


def _columns(char: str) -> int:
    """Columns a printable character takes in a terminal."""
    if char.isascii():
        return 1
    if unicodedata.category(char) in {"Mn", "Me"}:
        return 0
    return 2 if unicodedata.east_asian_width(char) in {"W", "F"} else 1
