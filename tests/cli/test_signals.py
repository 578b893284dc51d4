"""Signals and time limits: each command ends soon, with what is known and its exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from solvers.formats import write_problem
from tests.cli.started import ROOT, started
from tests.cli.test_solve import hard_problem

TRAIN = """
import jax, time

def traced(x):
    print("tracing", flush=True)
    time.sleep(60)
    return x

def autoshard_args():
    return (jax.ShapeDtypeStruct((8,), "float32"),)
"""


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["INT", "TERM"]
)
def test_a_signal_while_tracing_ends_the_command_with_its_name(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    words = ("plan", "train:traced", "--mesh", "data=8", "--out", "plan.json")
    with started(tmp_path, *words) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "tracing\n"
        began = time.monotonic()
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
        assert time.monotonic() - began < 30  # of the 60 that tracing takes
    assert (process.returncode, out, err) == (
        code,
        "",
        f"error: stopped by {number.name} before it was done\n",
    )
    assert not (tmp_path / "plan.json").exists()


IMPORTED = """
import sys, time

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "autoshard.commands.report":
            print("importing", flush=True)
            time.sleep(60)

sys.meta_path.insert(0, Slow())
"""


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["INT", "TERM"]
)
def test_a_signal_while_a_command_is_imported_ends_it_with_its_name(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    (tmp_path / "sitecustomize.py").write_text(IMPORTED)
    with started(tmp_path, "hardware", PYTHONPATH=f"{tmp_path}:{ROOT}") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (
        code,
        "",
        f"error: stopped by {number.name} before it was done\n",
    )


COLLECTED = """
import jax, time

class Slow:
    def __del__(self):
        print("collecting", flush=True)
        time.sleep(30)

def traced(x):
    Slow()
    time.sleep(60)
    return x

def autoshard_args():
    return (jax.ShapeDtypeStruct((8,), "float32"),)
"""


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["INT", "TERM"]
)
def test_a_signal_that_python_ignores_while_it_collects_garbage_is_not_lost(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    """It was told as a traceback, and the command went on."""
    (tmp_path / "train.py").write_text(COLLECTED)
    words = ("plan", "train:traced", "--mesh", "data=8", "--out", "plan.json")
    with started(tmp_path, *words) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "collecting\n"
        process.send_signal(number)
        _, err = process.communicate(timeout=50)
    assert (process.returncode, err) == (
        code,
        f"error: stopped by {number.name} before it was done\n",
    )


@pytest.mark.parametrize("seconds", [2.0, 4.0])
def test_a_solve_ends_by_its_limit_whatever_it_is_doing(tmp_path: Path, seconds: float) -> None:
    write_problem(hard_problem(), tmp_path / "hard.json")
    began = time.monotonic()
    with started(tmp_path, "solve", "hard.json", "--timeout", str(seconds)) as process:
        out, _ = process.communicate(timeout=60)
        late = time.monotonic() - began - seconds
    assert process.returncode in (0, 1)
    assert (process.returncode == 0) == bool(out)
    if out:
        assert len(json.loads(out.splitlines()[-1])) == 150
    assert late < 5  # 1 where nothing else runs on the machine


SLOW = """
import sys, time
sys.argv[0] = "autoshard"
from autoshard.commands import solve
def never(*args, progress, **options):
    from solvers import Progress
    progress(Progress(0.1, "solve", 7, 5, (1, 0)))
    time.sleep(600)
solve.solve = never
from autoshard.cli import main
main()
"""


@pytest.mark.parametrize("by", ["limit", "signal"])
def test_a_step_that_does_not_end_is_ended_with_the_best_so_far(tmp_path: Path, by: str) -> None:
    write_problem(hard_problem(), tmp_path / "hard.json")
    limit = "10" if by == "limit" else "500"
    with subprocess.Popen(
        [sys.executable, "-P", "-c", SLOW, "solve", "hard.json", "--timeout", limit],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert any("cost 7" in line for line in process.stderr)
        if by == "signal":
            process.send_signal(signal.SIGTERM)
        err = process.stderr.read()
        assert process.stdout is not None
        assert process.stdout.read() == "[1, 0]\n"
    assert process.returncode == 0
    assert err == "status: stopped in the middle of a step: solve\n"
