"""The commands of the page on sweeps work as they stand, one after the other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.sweeps.table import read_table
from tests.docs.pages import ROOT, blocks_of

PAGE = ROOT / "docs/how-to/run-a-sweep.md"


@pytest.mark.slow
def test_the_commands_of_the_page_work(tmp_path: Path) -> None:
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    for block in blocks_of(PAGE):
        if block.language == "sh":
            done = subprocess.run(
                ["sh", "-ec", block.text],
                cwd=tmp_path,
                env={**os.environ, "PATH": path},
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stdout + done.stderr
    statuses = {row["status"] for row in read_table(tmp_path / "first/table.csv")}
    assert statuses <= {"optimal", "within gap", "feasible"}
    assert len(list((tmp_path / "first/pictures").glob("*.svg"))) == 2
