"""The rules of the house: format, lint, types and one-way imports hold for the whole tree."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = {
    "ruff-check": ["ruff", "check", "."],
    "ruff-format": ["ruff", "format", "--check", "."],
    "mypy": ["mypy"],
    "imports": ["lint-imports"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_tree_keeps_the_rules_of_the_house(name: str) -> None:
    program, *arguments = COMMANDS[name]
    command = [str(Path(sys.executable).parent / program), *arguments]
    # For mypy what is on PYTHONPATH is somebody else's: it would see no types of ours.
    settings = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, env=settings
    )
    assert done.returncode == 0, done.stdout + done.stderr
