"""One point: planned once, in a process of its own, and a row whatever happens there."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments.sweeps import job
from experiments.sweeps.folder import SweepFolder
from experiments.sweeps.job import Again, measure_in_own_process, python_path, run_point
from experiments.sweeps.table import read_table
from tests.sweeps.points import mlp_point

POINT = mlp_point({"layers": 3})
ORIGIN = {"commit": "abc", "date": "2026-11-22"}


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is planned from here on; it fails the first time and every second time after."""
    points: list[str] = []

    def measure(point: Any, *_: Any) -> dict[str, Any]:
        points.append(point.identity)
        if len(points) % 2:
            return {"status": "failed", "error": "no luck"}
        return {"status": "optimal", "gap": 0.0}

    monkeypatch.setattr(job, "measure_in_own_process", measure)
    monkeypatch.setattr(job, "_origin", lambda: dict(ORIGIN))
    return points


def test_a_finished_point_is_not_planned_again(tmp_path: Path, planned: list[str]) -> None:
    folder = SweepFolder(tmp_path)
    first = run_point(POINT, folder)
    second = run_point(POINT, folder)
    assert first.startswith(f"{POINT.identity} took ")
    assert first.endswith("s: failed: no luck")
    assert second == f"{POINT.identity} was there: failed"
    assert planned == [POINT.identity]


def test_a_failed_point_is_a_row_of_the_table(tmp_path: Path, planned: list[str]) -> None:
    folder = SweepFolder(tmp_path)
    run_point(POINT, folder)
    (row,) = read_table(folder.table)
    assert (row["status"], row["error"], row["gap"]) == ("failed", "no luck", "")
    assert (row["workload"], row["mesh"], row["commit"]) == ("mlp", "data=2,model=4", "abc")
    assert row["sizes"] == "layers=3 features=16 hidden=32 batch=16"
    assert len(planned) == 1


@pytest.mark.parametrize(
    ("again", "status", "commit", "wanted"),
    [
        (Again.none, "failed", "other", False),
        (Again.failed, "failed", "abc", True),
        (Again.failed, "infeasible", "other", False),
        (Again.stale, "optimal", "abc", False),
        (Again.stale, "optimal", "other", True),
        (Again.all, "optimal", "abc", True),
    ],
)
def test_only_the_points_asked_for_are_planned_again(
    again: Again, status: str, commit: str, wanted: bool
) -> None:
    assert again.wants({"status": status, "commit": commit}, "abc") is wanted


def test_a_tree_with_changes_is_never_the_same() -> None:
    assert Again.stale.wants({"status": "optimal", "commit": "abc-dirty"}, "abc-dirty")


def test_a_point_planned_again_has_one_row(tmp_path: Path, planned: list[str]) -> None:
    folder = SweepFolder(tmp_path)
    run_point(POINT, folder)
    run_point(POINT, folder, again=Again.failed)
    said = run_point(POINT, folder, again=Again.failed)
    assert said == f"{POINT.identity} was there: optimal"
    assert planned == 2 * [POINT.identity]
    assert [row["status"] for row in folder.rows()] == ["optimal"]


def test_a_point_of_another_commit_is_kept_and_says_so(
    tmp_path: Path, planned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = SweepFolder(tmp_path)
    run_point(POINT, folder)
    monkeypatch.setattr(job, "_origin", lambda: {**ORIGIN, "commit": "def"})
    assert run_point(POINT, folder) == f"{POINT.identity} was there: failed, by abc"
    assert len(planned) == 1


def test_a_point_that_another_process_holds_is_left_alone(
    tmp_path: Path, planned: list[str]
) -> None:
    folder = SweepFolder(tmp_path)
    with folder.claim(POINT.identity):
        said = run_point(POINT, folder)
    assert said == f"{POINT.identity} left alone: another process is at it"
    assert planned == []


@pytest.mark.parametrize(
    ("workload", "limit_seconds", "found"),
    [
        ("answers", None, {"status": "optimal", "gap": 0.25}),
        ("is killed", None, {"status": "failed", "error": "its process was ended by SIGKILL"}),
        ("sleeps", 0.5, {"status": "failed", "error": "took longer than 0.5 s"}),
        (
            "gives up",
            None,
            {"status": "failed", "error": "its process ended with code 1: no such thing as a plan"},
        ),
        ("says nothing", None, {"status": "failed", "error": "its process ended with code 0"}),
    ],
)
def test_whatever_happens_to_its_process_is_found(
    workload: str, limit_seconds: float | None, found: dict[str, Any]
) -> None:
    point = replace(POINT, workload=workload)
    assert measure_in_own_process(point, limit_seconds, "tests.sweeps.misbehaving") == found


def test_what_plans_a_point_ends_with_whoever_waits_for_it() -> None:
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from experiments.sweeps.measure import end_with_parent as end; end()",
        ],
        stdin=subprocess.PIPE,
        env={"PYTHONPATH": python_path(), "JAX_PLATFORMS": "cpu"},
    )
    with process:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 1


def test_a_point_is_planned_in_a_process_of_its_own() -> None:
    found = measure_in_own_process(mlp_point())
    assert found["status"] in ("optimal", "within gap")
    assert found["devices"] == 8
    assert found["parameters"] == 2 * 16 * 32 + 32 + 16
    assert 0 < found["bound_seconds"] <= found["cost_seconds"]
    assert found["graph_seconds"] > 0
    assert "error" not in found


def test_sizes_that_do_not_fit_together_are_the_row_s_error() -> None:
    found = measure_in_own_process(mlp_point(mesh="2y4"))
    assert found["status"] == "failed"
    assert found["error"].startswith("InputError: ")
