"""Every example that `--help` prints runs as printed, each after those that make what it reads."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from click.testing import CliRunner

from autoshard.cli import main
from tests.cli.printed_examples import ORDER, examples_of, write_inputs

DIFFERENT = 1
"""How `diff` and `verify --fail-above` end where there is something to tell."""


def test_every_command_has_a_place_in_the_order() -> None:
    assert sorted(ORDER) == sorted(main.commands)


@pytest.mark.parametrize("name", ["verify"])
def test_devices_that_need_a_package_are_named_with_it(name: str) -> None:
    shown = [words for words in examples_of(name) if "--topology" in words]
    assert [words[words.index("--topology") + 1] for words in shown] == ["v5e:2x4"]


def test_the_examples_run_one_after_another(folder: Path) -> None:
    write_inputs(folder)
    has_libtpu = importlib.util.find_spec("libtpu") is not None
    for name in ORDER:
        if name == "calibrate":  # a minute of measuring: the slow twin below
            continue
        for words in examples_of(name):
            if "v5e:2x4" in words and name == "refine" and has_libtpu:  # minutes of compiling
                continue
            done = CliRunner().invoke(main, words)
            told = f"autoshard {' '.join(words)}: {done.output}"
            if "v5e:2x4" in words and not has_libtpu:
                assert done.exit_code == 2, told
                assert "autoshard[tpu]" in done.stderr, told
            else:
                allowed = (0, DIFFERENT) if name in ("diff", "verify") else (0,)
                assert done.exit_code in allowed, told
                assert "Traceback" not in done.output, told


@pytest.mark.slow
def test_the_example_of_calibrate_runs(folder: Path) -> None:
    (words,) = examples_of("calibrate")
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    assert (folder / "my-machine.yaml").exists()
