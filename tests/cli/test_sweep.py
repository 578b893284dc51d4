"""`autoshard sweep`: one program of the user's under many settings."""

from __future__ import annotations

import csv
from pathlib import Path

from click.testing import CliRunner

from autoshard.cli import main
from tests.cli.printed_examples import write_inputs


def test_every_setting_is_a_row_and_what_does_not_fit_says_so(folder: Path) -> None:
    write_inputs(folder)
    words = "sweep train:train_step --mesh data=8 --mesh data=2,model=4 --memory auto --memory 1kB"
    done = CliRunner().invoke(main, [*words.split(), "--out", "table.csv"])
    assert done.exit_code == 1, done.output
    with (folder / "table.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    asked = [(row["mesh"], row["memory"], row["status"]) for row in rows]
    assert asked == [
        ("data=8", "auto", "optimal"),
        ("data=8", "1kB", "infeasible"),
        ("data=2,model=4", "auto", "optimal"),
        ("data=2,model=4", "1kB", "infeasible"),
    ]
    assert float(rows[0]["by_hand_ratio"]) >= 1
    assert "train:train_step  4 settings" in done.output


def test_a_mesh_that_cannot_be_read_is_a_row_that_says_why(folder: Path) -> None:
    write_inputs(folder)
    done = CliRunner().invoke(main, ["sweep", "train:train_step", "--mesh", "data=0"])
    assert done.exit_code == 1
    assert "failed" in done.output
