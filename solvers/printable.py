"""Text from files and names, made fit for a terminal.

`solvers`, `cost_models` and `autoshard` each stand alone, so each has this module; a test holds
the three texts equal.
"""

from __future__ import annotations

MOST_LETTERS = 1000
"""Letters of one line of a message; a list of all choices an option has is shorter."""

MOST_LINES = 200


def printable(text: str, most_letters: int = MOST_LETTERS) -> str:
    r"""Returns text whose lines a terminal shows as they are: no control characters, none too long.

    Control characters, direction marks and lone surrogates are written as Python does: `\x1b`.
    """
    if len(text) <= most_letters and text.isprintable():
        return text
    lines = text[: MOST_LINES * (most_letters + 1)].split("\n")
    shown = [_line(line, most_letters) for line in lines[:MOST_LINES]]
    return "\n".join([*shown, "..."] if len(lines) > MOST_LINES else shown)


def _line(line: str, most_letters: int) -> str:
    kept = line if len(line) <= most_letters else f"{line[: most_letters - 3]}..."
    if kept.isprintable():
        return kept
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in kept)
