"""The progress line."""

from __future__ import annotations

import io
import time

import pytest

from autoshard.planning.progress_line import ProgressLine, format_progress
from autoshard.planning.stages import StageProgress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def sign(seconds: float) -> StageProgress:
    return StageProgress(seconds=seconds, stage="solve", step_seconds=2e-3, least_step_seconds=1e-3)


def test_the_line_says_stage_seconds_cost_bound_and_gap() -> None:
    progress = StageProgress(
        seconds=12.2, stage="solve", step_seconds=8e-3, least_step_seconds=7.9e-3
    )
    assert format_progress(progress) == ("solve 12 s: step 8.00 ms, at least 7.90 ms, gap 1.25 %")


def test_before_the_first_plan_only_the_bound_is_known() -> None:
    progress = StageProgress(seconds=1.0, stage="solve", note="presolve", least_step_seconds=5e-3)
    assert format_progress(progress) == "solve 1 s: no plan yet, at least 5.00 ms a step"


def test_other_stages_say_how_far_they_are() -> None:
    trace = StageProgress(seconds=2.0, stage="trace and lower")
    assert format_progress(trace, seconds_since=3.2) == "trace and lower 5 s"
    constraints = StageProgress(seconds=7.0, stage="constraints", note="propagation 40")
    assert format_progress(constraints) == "constraints 7 s: propagation 40"
    assert str(constraints) == "constraints 7 s: propagation 40"


def test_a_pipe_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    file = io.StringIO()
    with ProgressLine(file) as line:
        line(sign(99.0))
    assert file.getvalue() == ""


def watched(monkeypatch: pytest.MonkeyPatch, *seconds: float) -> str:
    monkeypatch.delenv("TTY_COMPATIBLE", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    file = Terminal()
    with ProgressLine(file) as line:
        for second in seconds:
            line(sign(second))
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


def test_a_stage_that_says_nothing_is_shown_once_it_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TTY_COMPATIBLE", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    file = Terminal()
    with ProgressLine(file, quiet_seconds=0.01) as line:
        line(StageProgress(seconds=0.0, stage="trace and lower"))
        deadline = time.monotonic() + 30.0
        while "trace and lower" not in file.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
        line(StageProgress(seconds=0.0, stage=""))  # planning is done: the cursor is back
        assert "\x1b[?25h" in file.getvalue()
    assert "trace and lower 0 s" in file.getvalue()
