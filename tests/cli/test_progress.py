"""The progress line."""

from __future__ import annotations

import io

import pytest

from autoshard.commands.progress import ProgressLine, format_progress
from solvers import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_line_says_stage_seconds_cost_bound_and_gap() -> None:
    progress = Progress(seconds=12.2, stage="solve", cost=8_000, lower_bound=7_900)
    assert format_progress(progress, 1e-6) == (
        "solve 12 s: step 8.00 ms, at least 7.90 ms, gap 1.25 %"
    )


def test_before_the_first_plan_only_the_bound_is_known() -> None:
    progress = Progress(seconds=1.0, stage="presolve", cost=None, lower_bound=5)
    assert format_progress(progress, 1e-3) == "presolve 1 s: no plan yet, at least 5.00 ms a step"


def test_a_pipe_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    file = io.StringIO()
    with ProgressLine(file, seconds_per_cost=1.0) as line:
        line(Progress(seconds=99.0, stage="solve", cost=2, lower_bound=1))
    assert file.getvalue() == ""


def watched(monkeypatch: pytest.MonkeyPatch, *seconds: float) -> str:
    monkeypatch.delenv("TTY_COMPATIBLE", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    file = Terminal()
    with ProgressLine(file, seconds_per_cost=1e-3) as line:
        for second in seconds:
            line(Progress(seconds=second, stage="solve", cost=2, lower_bound=1))
    return file.getvalue()


def test_a_terminal_gets_a_line_once_a_solve_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    text = watched(monkeypatch, 0.5, 3.0)
    assert "- solve 3 s: step 2.00 ms, at least 1.00 ms, gap 50.0 %" in text


def test_the_line_is_cleared_and_the_cursor_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    text = watched(monkeypatch, 3.0)
    assert "\x1b[2K" in text.rpartition("solve")[2]
    assert "\x1b[?25h" in text.rpartition("solve")[2]


def test_a_short_solve_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert watched(monkeypatch, 0.1, 0.9) == ""
