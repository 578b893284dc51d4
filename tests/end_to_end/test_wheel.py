"""The command line from a built wheel, in an environment of its own, outside of the checkout."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.printed_examples import ORDER, examples_of, write_inputs

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
SECONDS_IN_A_MINUTE = 60


def ended(command: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a command as a user's shell would, without what the tests set for themselves."""
    ours = ("PYTHONPATH", "JAX_PLATFORMS", "XLA_FLAGS")
    clean = {name: value for name, value in os.environ.items() if name not in ours}
    return subprocess.run(
        command,
        cwd=folder,
        env={**clean, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=15 * SECONDS_IN_A_MINUTE,
    )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment with nothing but a wheel and what it asks for."""
    folder = tmp_path_factory.mktemp("wheel")
    wheel = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", "dist", str(ROOT)]
    venv = [sys.executable, "-m", "venv", "clean"]
    for command in (wheel, venv):
        done = ended(command, folder)
        assert done.returncode == 0, done.stderr
    (built,) = (folder / "dist").glob("*.whl")
    done = ended([str(folder / "clean/bin/pip"), "install", "-q", str(built)], folder)
    assert done.returncode == 0, done.stderr
    return folder / "clean" / "bin"


def test_it_is_the_wheel_that_is_imported(installed: Path, tmp_path: Path) -> None:
    code = "import autoshard, cost_models, solvers; print(autoshard.__file__)"
    done = ended([str(installed / "python"), "-c", code], tmp_path)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(installed.parent)


def test_the_examples_of_the_commands_run_as_printed(installed: Path, tmp_path: Path) -> None:
    write_inputs(tmp_path)
    for name in ORDER:
        if name == "calibrate":  # a minute of measuring; tests/cli/test_examples.py has it
            continue
        for words in examples_of(name):
            line = shlex.join(["autoshard", *words])
            path = f"{installed}{os.pathsep}{os.environ['PATH']}"
            done = ended(["sh", "-c", line], tmp_path, PATH=path)
            assert "Traceback" not in done.stderr, f"{line}\n{done.stderr}"
            if "--topology" in words:  # a compiler that the wheel does not ask for
                assert done.returncode == 2, line
                assert "autoshard[tpu]" in done.stderr, line
            else:
                assert done.returncode in ((0, 1) if name == "diff" else (0,)), done.stderr
