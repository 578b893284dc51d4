"""Child processes run the code of this package, whatever lies in the current folder."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

SOLVE = """
from solvers.own_process import OwnProcess, solve_in_own_process
from solvers.engines.protocol import Request
from solvers.catalog import engine_by_name
from tests.solvers.instances import random_problem
answer = solve_in_own_process(engine_by_name("brute_force"), random_problem(0), Request())
assert answer.choices is not None
"""
COMPILE = """
from solvers.compile_ahead import Compiler
compiler = Compiler(is_needed=True)
compiler.start()
compiler.wait_for("walks", lambda: False)
compiler.close()
"""


@pytest.mark.parametrize("program", [SOLVE, COMPILE], ids=["solver", "compiler"])
def test_a_module_in_the_current_folder_is_not_imported(tmp_path: Path, program: str) -> None:
    mark = "open(__file__ + '.ran', 'w').close()\n"
    for name in ("queue", "numba", "scipy"):
        (tmp_path / f"{name}.py").write_text(mark)
    (tmp_path / "solvers").mkdir()
    (tmp_path / "solvers" / "__init__.py").write_text(mark)
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert not list(tmp_path.rglob("*.ran"))


ABANDONED = """
import os, sys
from pathlib import Path
from autoshard.aot import child
child.main = lambda folder: (print("here", flush=True), __import__("signal").pause())
import threading
folder = Path(sys.argv[1])
threading.Thread(target=child._end_with_parent, args=(folder,), daemon=True).start()
child.main(folder)
"""


def test_a_compile_whose_parent_was_killed_removes_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "autoshard-verify-x"
    folder.mkdir()
    (folder / "program.mlirbc").write_bytes(b"x")
    with subprocess.Popen(
        [sys.executable, "-c", ABANDONED, folder],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"here\n"
        process.stdin.close()  # as the end of the parent does
        until = time.monotonic() + 10
        while folder.exists() and time.monotonic() < until:
            time.sleep(0.02)
        assert not folder.exists()
    assert process.returncode == 1
