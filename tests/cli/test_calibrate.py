"""`autoshard calibrate`, with the measuring replaced by one that answers at once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from autoshard.cli import main
from autoshard.commands import calibrate as cli_calibrate
from autoshard.errors import InputError
from cost_models import Hardware, get_hardware, load_hardware
from cost_models.calibrate import calibrate_hardware
from tests.cost_models.synthetic import measurements_of, switched

pytestmark = pytest.mark.usefixtures("folder")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the measuring was called with."""
    found: list[dict[str, Any]] = []

    def calibrate(**options: Any) -> Hardware:
        found.append(options)
        options["progress"]("all-gather: 12 of 18 sizes", 1.5)
        return calibrate_hardware(
            get_hardware("h100"), measurements_of(switched()), name=options["name"]
        )

    monkeypatch.setattr(cli_calibrate, "calibrate", calibrate)
    return found


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["calibrate", *arguments])


def test_the_table_is_printed_and_the_file_written(calls: list[dict[str, Any]]) -> None:
    result = run("--out", "mine.yaml")
    assert result.exit_code == 0
    assert result.stderr == "    1.5 s  all-gather: 12 of 18 sizes\n"
    assert result.stdout.startswith("mine: 8 x Known 1, Linux x86_64, 2 cores, jax 0.10.2")
    assert result.stdout.endswith("wrote mine.yaml: use it with --hardware mine.yaml\n")
    machine = load_hardware("mine.yaml")
    assert machine.name == "mine"
    assert machine.measured is not None
    for fit in machine.measured.collectives:
        assert f"  {fit.kind} " in result.stdout
    assert calls[0]["seconds"] == 60.0
    assert calls[0]["devices"] is None


def test_every_option_is_handed_on(calls: list[dict[str, Any]]) -> None:
    run(*"--devices 4 --out a.yaml --base h100 --seconds 5 --name node".split())
    del calls[0]["progress"]
    assert calls == [{"devices": 4, "base": "h100", "seconds": 5.0, "name": "node"}]


def test_a_folder_that_is_not_there_is_told_before_anything_is_measured(
    calls: list[dict[str, Any]],
) -> None:
    result = run("--out", "none/mine.yaml")
    assert result.exit_code == 2
    assert result.stderr == (
        "error: the file cannot be written: No such file or directory\n"
        "  where: --out none/mine.yaml\n"
        "  fix: name a file in a folder that exists and that you may write to\n"
    )
    assert calls == []


def test_an_error_is_readable_and_leaves_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def calibrate(**_: Any) -> Hardware:
        raise InputError("nothing could be fitted", where="2 x cpu", fix="measure longer")

    monkeypatch.setattr(cli_calibrate, "calibrate", calibrate)
    result = run("--out", "mine.yaml")
    assert result.exit_code == 2
    assert result.stderr == (
        "error: nothing could be fitted\n  where: 2 x cpu\n  fix: measure longer\n"
    )
    assert list(Path().iterdir()) == []


def test_an_interrupt_leaves_the_old_file_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def calibrate(**_: Any) -> Hardware:
        raise KeyboardInterrupt

    Path("mine.yaml").write_text("old", encoding="utf-8")
    monkeypatch.setattr(cli_calibrate, "calibrate", calibrate)
    result = run("--out", "mine.yaml")
    assert result.exit_code != 0
    assert [path.name for path in Path().iterdir()] == ["mine.yaml"]
    assert Path("mine.yaml").read_text(encoding="utf-8") == "old"


@pytest.mark.usefixtures("calls")
def test_a_host_is_split_unless_the_environment_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=here")
    run("--devices", "4", "--out", "mine.yaml")
    split = "--xla_dump_to=here --xla_force_host_platform_device_count=4"
    assert os.environ["XLA_FLAGS"] == split
    run("--devices", "8", "--out", "mine.yaml")
    assert os.environ["XLA_FLAGS"] == split


@pytest.mark.usefixtures("calls")
def test_the_table_fits_a_narrow_terminal() -> None:
    result = run("--out", "mine.yaml", "--width", "40")
    table, _, _ = result.stdout.rpartition("wrote ")
    assert max(map(len, table.splitlines())) <= 40
