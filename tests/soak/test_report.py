"""The page of the soaks counts each case once, as it ended last."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from experiments import results_table
from tests.soak import report
from tests.soak.report import _of_files, _of_ops, _of_programs, _of_stops, sections_of, write_report


def program(number: int, commit: str, verdict: str) -> dict[str, Any]:
    told = {"key": "", "detail": f"said of {verdict}", "facts": {}}
    return {"seed": 0, "number": number, "commit": commit, "verdict": verdict, **told}


def test_a_program_that_ended_well_at_a_later_commit_is_mended() -> None:
    lines = [
        program(1, "old", "wrong"),
        program(2, "old", "equal"),
        program(3, "old", "bytes"),
        program(1, "new", "equal"),
        program(3, "new", "bytes"),
    ]
    parts = list(_of_programs(lines))
    assert parts[0] == "3 programs, 2 of them good; 2 at new, 1 at old."
    assert "| bytes | 1 |" in parts[1]
    assert "| wrong |" not in parts[1]
    bad, said, mended = parts[-3:]
    assert bad.splitlines()[2:] == ["| 3 | new | bytes | said of bytes |"]
    assert said == "Mended since they were found:"
    assert mended.splitlines()[2:] == ["| 1 | old | wrong | said of wrong |"]


def test_a_file_with_problems_counts_until_it_has_none() -> None:
    def case(file: int, *problems: str) -> dict[str, Any]:
        return {"commit": "c", "format": "plan", "file": file, "problems": list(problems)}

    (told,) = _of_files([case(0), case(1, "x"), case(2, "y"), case(1)])
    assert told == "3 files (3 plan), 1 with problems; 1 had problems that are mended; 3 at c."


def test_trials_of_the_partitioner_are_told_apart_from_those_of_plans() -> None:
    def trial(kind: str, verdict: str) -> dict[str, Any]:
        return {"commit": "c", "kind": kind, "trial": 0, "case": "dot", "verdict": verdict}

    of_xla, of_plans = _of_ops([trial("planned", "equal"), trial("random", "wrong")])
    assert of_xla.endswith("1 trials of 1 ops: 1 wrong; 1 at c.")
    assert of_plans == "Plans under random pins: 1 trials of 1 ops: 1 equal; 1 at c."


def test_signals_are_told_by_the_clock_too() -> None:
    stop = {"commit": "c", "stop": "signal", "problems": []}
    (told,) = _of_stops([{**stop, "late": 0.5, "waited": 1.5}, {**stop, "late": 1, "waited": 9}])
    assert "by the clock 1 ended within 2 s, the last after 9.0 s" in told


def test_sections_without_a_record_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    monkeypatch.setattr(results_table, "RESULTS", tmp_path)
    kept = {"Deadlines": "Eleven.", "Damaged files": "Ten.", "Of old": "Told."}
    page = "\n\n".join(
        ["# Reliability", *(f"## {title}\n\n{text}" for title, text in kept.items())]
    )
    (tmp_path / "reliability.md").write_text(page)
    record = tmp_path / "record.jsonl"
    stop = {"commit": "c", "stop": "deadline", "case": 0, "words": ["plan"], "late": 2.0}
    record.write_text(json.dumps({**stop, "problems": ["2.0 s over 1 s"]}) + "\n")
    text = write_report([record]).read_text()
    found = sections_of(text)
    assert list(found) == ["Damaged files", "Deadlines", "Of old"]
    assert found["Damaged files"] == "Ten."
    assert found["Deadlines"].startswith("1 cases, 1 with problems; the latest by 2.0 s; 1 at c.")
    assert "| 0 | plan | 2.0 s over 1 s |" in found["Deadlines"]


def test_programs_of_each_record_have_a_section(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    monkeypatch.setattr(results_table, "RESULTS", tmp_path)
    records = [tmp_path / "looked_at.jsonl", tmp_path / "fresh.jsonl"]
    for path, numbers in zip(records, ((7, 5), (40,)), strict=True):
        lines = (program(number, "c", "equal") for number in numbers)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = sections_of(write_report(records).read_text())
    assert [title for title in found if "programs" in title] == [
        "Whole programs from 5",
        "Whole programs from 40",
    ]
    assert found["Whole programs from 5"].startswith("2 programs, 2 of them good; 2 at c.")
