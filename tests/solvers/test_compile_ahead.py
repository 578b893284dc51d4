from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numba
import pytest

from solvers import kernels
from solvers.compile_ahead import BOUND, PRICED_BOUND, REGIONS, WALK, Compiler

COUNT_COMPILED = """
import time
from numba.core import event
from solvers.incumbent import Incumbent
from solvers.presolve import reduce_fully
from solvers.scalable import run_scalable
from tests.solvers.instances import LayeredShape, layered_problem

compiled = []

class Listener(event.Listener):
    def on_start(self, told):
        compiled.append(told.data["dispatcher"].__name__)

    def on_end(self, told):
        pass

reduced = reduce_fully(layered_problem(LayeredShape(num_layers=2), memory_limit=10**9))
incumbent = Incumbent(deadline=time.monotonic() + 4.0)
with event.install_listener("numba:compile", Listener()):
    run_scalable(reduced.problem, incumbent)
assert incumbent.best()[0] is not None
print(compiled)
"""


def never() -> bool:
    return False


@pytest.mark.slow
def test_stages_are_compiled_in_order_and_leave_a_lane_nothing_to_compile(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-m", "solvers.compile_kernels"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read().split("\n")[:-1] == [WALK, PRICED_BOUND, BOUND, REGIONS]
    assert process.returncode == 0
    assert len(list(tmp_path.glob("*/*.compiled"))) == 1
    told = subprocess.run(
        [sys.executable, "-c", COUNT_COMPILED],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout == "[]\n"


def test_nothing_is_started_where_all_is_compiled() -> None:
    compiler = Compiler(is_needed=False)
    assert compiler.wait_for(WALK, never) is None
    compiler.close()


@pytest.mark.parametrize("program", ["no such program", "/bin/false"])
def test_a_process_that_does_not_compile_leaves_it_to_the_lane(
    monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    monkeypatch.setattr(sys, "executable", program)
    compiler = Compiler(is_needed=True)
    assert (
        compiler.wait_for(WALK, never)
        == "the process that compiles ended early: walks is compiled here"
    )
    compiler.close()


def test_a_wait_ends_with_the_incumbent() -> None:
    compiler = Compiler(is_needed=True)
    assert compiler.wait_for(REGIONS, lambda: True) is None
    compiler.close()


def test_a_process_that_is_ended_leaves_no_file_open(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[str]] = []
    start = subprocess.Popen

    def noted(*arguments: Any, **options: Any) -> subprocess.Popen[str]:
        started.append(start(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", noted)
    compiler = Compiler(is_needed=True)
    compiler.start()
    compiler.close()
    (process,) = started
    assert process.returncode is not None
    assert process.stdin is not None
    assert process.stdout is not None
    assert (process.stdin.closed, process.stdout.closed) == (True, True)


def test_where_no_folder_may_be_written_one_is_made_for_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(**options: object) -> object:
        del options
        raise RuntimeError("no locator available")

    monkeypatch.setenv("NUMBA_CACHE_DIR", os.environ.get("NUMBA_CACHE_DIR", ""))
    monkeypatch.setattr(numba, "njit", refuse)
    assert not kernels._find_folder()
    folder = Path(os.environ["NUMBA_CACHE_DIR"])
    assert folder.is_dir()
    assert str(folder) == numba.config.CACHE_DIR
    monkeypatch.undo()
    numba.config.reload_config()
