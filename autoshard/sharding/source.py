"""Pointing into text a user wrote: the line and a caret under the place."""

from __future__ import annotations


def source_with_caret(text: str, index: int) -> str:
    """The line of `text` that holds position `index`, with a caret under that position.

    Args:
        text: All of the source.
        index: 0 to `len(text)`; the end stands for something missing there.

    Returns:
        Three lines: line and column counted from 1, the source line, the caret.
    """
    line_start = text.rfind("\n", 0, index) + 1
    line_end = text.find("\n", index)
    line = text[line_start : line_end if line_end >= 0 else len(text)].replace("\t", " ")
    column = index - line_start
    line_number = text.count("\n", 0, line_start) + 1
    return f"line {line_number}, column {column + 1}\n    {line}\n    {' ' * column}^"
