"""Messages show text from files as a terminal should have it."""

from __future__ import annotations

import pytest

from autoshard.errors import InputError
from autoshard.printable import printable
from cost_models import CostModelError
from solvers.errors import SolverError


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain \u00d7 \u2192 text\nin two lines", "plain \u00d7 \u2192 text\nin two lines"),
        ("\x1b[31mred\x07\x08", "\\x1b[31mred\\x07\\x08"),
        ("left\u202eright", "left\\u202eright"),
        ("half \ud800", "half \\ud800"),
        ("a\rb\tc", "a\\rb\\tc"),
        ("x" * 1001, "x" * 997 + "..."),
        ("x\n" * 201, "x\n" * 200 + "..."),
    ],
)
def test_control_characters_are_written_out_and_long_lines_cut(text: str, shown: str) -> None:
    assert printable(text) == shown


@pytest.mark.parametrize("error", [InputError, CostModelError, SolverError])
def test_every_error_shows_only_printable_text(error: type[Exception]) -> None:
    made = error("\x1b]0;x\x07" + "y" * 10**5, where="\x1b[2J", fix="\u202e")  # type: ignore[call-arg]
    lines = str(made).split("\n")
    assert all(line.isprintable() and len(line) < 2100 for line in lines)
    assert "\\x1b]0;x\\x07yyy" in str(made)
