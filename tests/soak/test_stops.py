"""One command that is stopped, as `tests.soak.stops` does it hundreds of times."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.soak import stops


def test_a_solve_that_gets_a_signal_leaves_nothing_half_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stops, "MOST_AFTER_SIGNAL", 60.0)  # machines of tests are shared
    found = stops.signalled(len(stops.MODELS), tmp_path)
    assert found["words"][0] == "solve"
    assert found["problems"] == []


def test_cases_on_record_are_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "record.jsonl"
    record.write_text(json.dumps({"stop": "signal", "case": 0}) + "\n")
    late = {"words": [], "late": 3.0, "problems": ["ended 3.0 s after the signal"]}
    monkeypatch.setitem(stops.RUNS, "signal", lambda *_: late)
    words = ["stops", "--kind", "signal", "--count", "2", "--record", str(record)]
    monkeypatch.setattr(sys, "argv", words)
    stops.main()
    assert capsys.readouterr().out == "signal 1: ended 3.0 s after the signal\n"
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    assert [line["case"] for line in lines] == [0, 1]
