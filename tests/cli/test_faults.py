"""Faults of the machine: each ends in a clear message, or the command goes on without."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from autoshard.cli import main
from autoshard.plans.plan_json import dump_plan
from solvers.formats import write_problem
from tests.cli.started import ROOT, RUN
from tests.plan.plans import gpt_plan
from tests.solvers.instances import random_problem

WITHOUT_TEMPORARY = f"import tempfile; tempfile._candidate_tempdir_list = lambda: []; {RUN}"


def test_a_full_disk_behind_standard_output_is_told(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(dump_plan(gpt_plan()))
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-P", "-c", RUN, "report", "plan.json", "--json"],
            cwd=tmp_path,
            env={"PYTHONPATH": str(ROOT)},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr.startswith(
        "error: what is printed cannot be written: No space left on device\n"
        "  fix: make room where standard output goes\n"
    )


def test_an_instance_is_solved_where_there_is_no_folder_for_temporary_files(
    tmp_path: Path,
) -> None:
    problem = random_problem(0)
    write_problem(problem, tmp_path / "small.json")
    done = subprocess.run(
        [sys.executable, "-P", "-c", WITHOUT_TEMPORARY, "solve", "small.json"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)) == len(problem.node_costs)


def test_memory_that_runs_out_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_large(*_: object) -> None:
        raise MemoryError

    (tmp_path / "plan.json").write_text(dump_plan(gpt_plan()))
    monkeypatch.setattr("autoshard.commands.code.load_plan_data", too_large)
    done = CliRunner().invoke(main, ["code", str(tmp_path / "plan.json")])
    assert (done.exit_code, done.stderr) == (
        2,
        "error: the memory that the process may take ran out\n"
        "  fix: raise its limit (ulimit -v), or plan a smaller program\n",
    )
