"""The table of planning times: what it tells of points that fail, and of depth."""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

from experiments.planning_speed import (
    COLUMNS,
    POINTS,
    compile_packages,
    row_of,
    seconds_per_layer,
    take_packages_of,
)
from experiments.workloads import DEEP_WORKLOADS, WORKLOADS


def test_a_point_without_an_answer_says_so_in_its_row() -> None:
    row = row_of("405B Llama, 126 layers", "none in 39 s", "failed")
    assert (row["before, s"], row["now, s"]) == ("none in 39 s", "failed")
    assert row.keys() <= set(COLUMNS)


def test_seconds_of_a_layer_leave_out_depths_that_were_not_measured() -> None:
    found: dict[str, dict[str, float] | str] = {
        "405B Llama, 4 layers": {"seconds": 4.0},
        "405B Llama, 32 layers": "failed",
        "405B Llama, 126 layers": {"seconds": 16.2},
    }
    assert seconds_per_layer(found) == "4 to 126 layers 0.100 s"


def test_every_point_is_of_a_known_workload() -> None:
    assert {point.workload for point in POINTS.values()} <= WORKLOADS.keys() | DEEP_WORKLOADS.keys()


def test_points_load_bytecode_of_their_tree_whatever_the_shell_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    for name in ("autoshard", "cost_models", "solvers"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "one.py").write_text("x = 1\n")
    compile_packages(tmp_path)
    assert len(list(tmp_path.glob("*/__pycache__/one.*.pyc"))) == 3


def test_a_point_plans_with_all_packages_of_its_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("autoshard", "cost_models", "solvers")
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", list(sys.path))
    take_packages_of(tmp_path)
    found = [PathFinder.find_spec(name) for name in names]
    assert [Path(str(one and one.origin)).parent for one in found] == [
        tmp_path / name for name in names
    ]
