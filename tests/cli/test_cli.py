"""The command line, with the planner replaced by one that answers at once."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from autoshard import Plan, api
from autoshard.cli import main
from autoshard.errors import ConstraintError, InputError
from autoshard.plans.plan_json import load_plan_data, save_plan
from autoshard.report import format_program, format_report
from autoshard.sharding import parse_mesh_sizes
from cost_models import CATALOG
from tests.plan.plans import gpt_plan, plan_in_rounds, plan_that_does_not_fit

Optimize = Callable[..., Plan]

TRAIN = """
def step(state, batch, *, rate): ...
def autoshard_args():
    return {"args": ("state", "batch"), "kwargs": {"rate": 0.1}, "donate_argnums": 0}
"""


@pytest.fixture(autouse=True)
def module(folder: Path) -> None:
    (folder / "train.py").write_text(TRAIN)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the planner was called with."""
    found: list[dict[str, Any]] = []

    def optimize(fn: Any, *args: Any, **options: Any) -> Plan:
        found.append({"fn": fn.__name__, "args": args, **options})
        return Plan(gpt_plan())

    monkeypatch.setattr(api, "optimize", optimize)
    return found


def answer(monkeypatch: pytest.MonkeyPatch, optimize: Optimize) -> None:
    monkeypatch.setattr(api, "optimize", optimize)


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [os.fspath(argument) for argument in arguments])


PLAN = ("plan", "train:step", "--mesh", "data=2,model=4")


def test_plan_prints_the_report(calls: list[dict[str, Any]]) -> None:
    result = run(*PLAN)
    assert (result.exit_code, result.stdout, result.stderr) == (0, format_report(gpt_plan()), "")
    assert len(calls) == 1


def test_plan_hands_everything_on(calls: list[dict[str, Any]]) -> None:
    options = "--hardware tpu-v5e --memory 0.9 --time-limit 5 --gap 0.1 --solver cbc --seed 7"
    counts = "--trip-count train.py:12=100 --trip-count loop=3 --no-baselines --schedules none"
    counts += " --overlap none --no-cache --simplicity 0.02 --constraint-effort inf --accumulate 4"
    run(*PLAN, *options.split(), *counts.split())
    (call,) = calls
    assert call.pop("progress") is not None
    assert call == {
        "fn": "step",
        "args": ("state", "batch"),
        "kwargs": {"rate": 0.1},
        "donate_argnums": 0,
        "mesh": "data=2,model=4",
        "devices": None,
        "axis_names": ("data", "model", "inner"),
        "hardware": "tpu-v5e",
        "memory_budget": "0.9",
        "trip_counts": {"train.py:12": 100.0, "loop": 3.0},
        "schedules": "none",
        "overlap": "none",
        "solver": "cbc",
        "time_limit_seconds": 5.0,
        "relative_gap": 0.1,
        "seed": 7,
        "simplicity": 0.02,
        "constraint_effort": math.inf,
        "remat": "auto",
        "accumulate": 4,
        "baselines": False,
        "cache": False,
    }


@pytest.mark.parametrize(
    ("arguments", "mesh", "devices", "names"),
    [
        (["--devices", "64"], None, 64, ("data", "model", "inner")),
        (["--mesh", "auto"], "auto", None, ("data", "model", "inner")),
        (["--mesh", "auto", "--axis-names", "a, b"], "auto", None, ("a", "b")),
    ],
)
def test_a_mesh_can_be_left_to_the_search(
    calls: list[dict[str, Any]],
    arguments: list[str],
    mesh: str | None,
    devices: int | None,
    names: tuple[str, ...],
) -> None:
    assert run("plan", "train:step", *arguments).exit_code == 0
    (call,) = calls
    assert (call["mesh"], call["devices"], call["axis_names"]) == (mesh, devices, names)


@pytest.mark.parametrize(
    ("said", "count"),
    [((), None), (("--accumulate", "auto"), "auto"), (("--accumulate", "x"), "x")],
)
def test_a_number_of_microbatches_is_read_and_other_words_are_handed_on(
    calls: list[dict[str, Any]], said: tuple[str, ...], count: Any
) -> None:
    run(*PLAN, *said)
    assert calls[0]["accumulate"] == count


def test_no_memory_limit_is_said_as_none(calls: list[dict[str, Any]]) -> None:
    run(*PLAN, "--memory", "none")
    assert calls[0]["memory_budget"] is None


@pytest.mark.usefixtures("calls")
def test_out_saves_the_plan(folder: Path) -> None:
    assert run(*PLAN, "--out", "plan.json").exit_code == 0
    saved = load_plan_data(folder / "plan.json")
    assert saved == replace(gpt_plan(), target="train:step")


def test_a_plan_that_does_not_fit_is_reported_and_not_saved(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    answer(monkeypatch, lambda *_, **__: Plan(plan_that_does_not_fit()))
    result = run(*PLAN, "--out", "plan.json")
    assert result.exit_code == 1
    assert "No plan: infeasible" in result.stdout
    assert result.stderr == "error: no plan was found (infeasible); plan.json was not written\n"
    assert [path.name for path in folder.iterdir()] == ["train.py"]


def test_an_error_is_one_message_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    def optimize(*_: Any, **__: Any) -> Plan:
        raise ConstraintError("this cannot be", where="in_shardings", fix="free one of them")

    answer(monkeypatch, optimize)
    result = run(*PLAN, "--out", "plan.json")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "error: this cannot be\n  where: in_shardings\n  fix: free one of them\n"
    )
    assert [path.name for path in folder.iterdir()] == ["train.py"]


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def optimize(*_: Any, **__: Any) -> Plan:
        raise ConstraintError("this cannot be")

    answer(monkeypatch, optimize)
    result = run(*PLAN, "--debug")
    assert result.exit_code == 2
    assert "Traceback (most recent call last)" in result.stderr
    assert result.stderr.endswith("error: this cannot be\n")


def test_a_failure_nobody_foresaw_is_one_message_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def optimize(*_: Any, **__: Any) -> Plan:
        raise KeyError("x")

    answer(monkeypatch, optimize)
    result = run(*PLAN)
    assert result.exit_code == 2
    assert result.stderr == (
        "error: unexpected KeyError: 'x'\n"
        "  fix: --debug shows where; if that is not in your code, report it\n"
    )


def test_an_interrupted_solve_leaves_no_file(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    def optimize(*_: Any, **__: Any) -> Plan:
        raise KeyboardInterrupt

    answer(monkeypatch, optimize)
    result = run(*PLAN, "--out", "plan.json")
    said = "error: stopped by SIGINT before it was done\n"
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", said)
    assert [path.name for path in folder.iterdir()] == ["train.py"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["plan", "trian:step", "--mesh", "data=2"],
            'error: there is no module "trian"\n'
            "  where: looked in {folder} and the installed packages\n"
            "  fix: run the command in the folder that holds it, or install the package\n",
        ),
        (
            ["plan", "train:steps", "--mesh", "data=2"],
            'error: there is no "steps" in module "train"\n'
            "  where: train:steps\n"
            "  fix: name a function that is there, such as step\n",
        ),
        (
            [*PLAN, "--trip-count", "12"],
            'error: expected FILE:LINE=N with a number of at least 0, found "12"\n'
            "  where: --trip-count\n"
            "  fix: name the line the loop is written on, as in train.py:12=100\n",
        ),
        (
            [*PLAN, "--out", "missing/plan.json"],
            "error: the file cannot be written: No such file or directory\n"
            "  where: --out missing/plan.json\n"
            "  fix: name a file in a folder that exists and that you may write to\n",
        ),
        (
            [*PLAN, "--out", "."],
            "error: the file cannot be written: it is a folder, not a regular file\n"
            "  where: --out .\n"
            "  fix: name a file in a folder that exists and that you may write to\n",
        ),
        (
            ["report", "plan.json"],
            "error: the plan file cannot be read: No such file or directory\n"
            "  where: plan.json\n"
            "  fix: give the path of a file that `autoshard plan --out` or `plan.save` wrote\n",
        ),
        (
            ["diff", "train.py", "plan.json"],
            "error: the plan file is not JSON: expecting value at line 2, column 1\n"
            "  where: train.py\n"
            "  fix: make the plan again with `autoshard plan`, or take the file from where it was "
            "saved\n",
        ),
    ],
)
def test_bad_input_is_told_before_anything_is_planned_or_written(
    calls: list[dict[str, Any]], folder: Path, arguments: list[str], message: str
) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == message.replace("{folder}", str(folder))
    assert calls == []
    assert [path.name for path in folder.iterdir()] == ["train.py"]


def test_a_mesh_that_does_not_parse_is_told_before_the_module_is_loaded() -> None:
    with pytest.raises(InputError) as caught:
        parse_mesh_sizes("data")
    result = run("plan", "no_such_module:step", "--mesh", "data")
    assert (result.exit_code, result.stderr) == (2, f"error: {caught.value}\n")


def test_options_out_of_range_are_refused() -> None:
    result = run(*PLAN, "--gap", "-1")
    assert result.exit_code == 2
    assert "Invalid value for '--gap': -1.0 is not in the range x>=0." in result.stderr


def test_report_prints_a_saved_plan_in_the_width_asked_for() -> None:
    save_plan(gpt_plan(), "plan.json")
    result = run("report", "plan.json", "--width", "140")
    assert (result.exit_code, result.stdout) == (0, format_report(gpt_plan(), 140))


def test_report_prints_the_program_after_a_round() -> None:
    save_plan(plan_in_rounds(), "plan.json")
    result = run("report", "plan.json", "--round", "2")
    assert (result.exit_code, result.stdout) == (0, format_program(plan_in_rounds(), 2))


def test_report_of_a_round_that_is_not_there_is_refused() -> None:
    save_plan(plan_in_rounds(), "plan.json")
    result = run("report", "plan.json", "--round", "1")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: there is no round 1: the rounds are 0, 2, 3\n")


def test_report_of_a_cut_file_is_refused(folder: Path) -> None:
    save_plan(gpt_plan(), "plan.json")
    text = (folder / "plan.json").read_text()
    (folder / "plan.json").write_text(text[: len(text) // 2])
    result = run("report", "plan.json")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: the plan file is cut: it ends in the middle of a value")


def test_report_names_every_problem_of_a_damaged_file(folder: Path) -> None:
    save_plan(gpt_plan(), "plan.json")
    members = json.loads((folder / "plan.json").read_text())
    members["arguments"][3]["sharding"] = "?"
    del members["mesh"]
    (folder / "plan.json").write_text(json.dumps(members))
    result = run("report", "plan.json")
    assert result.exit_code == 2
    assert "`arguments[3].sharding`: " in result.stderr
    assert "`mesh`: is missing" in result.stderr


def test_diff_of_equal_plans_exits_with_0() -> None:
    save_plan(gpt_plan(), "a.json")
    save_plan(replace(gpt_plan(), stage_seconds={}), "b.json")
    result = run("diff", "a.json", "b.json")
    assert (result.exit_code, result.stdout) == (0, "The plans are the same.\n")


def test_diff_of_different_plans_exits_with_1() -> None:
    save_plan(gpt_plan(), "a.json")
    save_plan(plan_that_does_not_fit(), "b.json")
    result = run("diff", "a.json", "b.json")
    assert result.exit_code == 1
    assert result.stdout.startswith("a.json -> b.json\n")
    assert result.stderr == ""


def test_hardware_lists_every_machine_once() -> None:
    result = run("hardware")
    assert result.exit_code == 0
    rows = [line.split()[0] for line in result.stdout.splitlines()[2:]]
    assert rows == [machine.name for machine in CATALOG]


@pytest.mark.parametrize("name", ["", *main.commands])
def test_every_command_has_help_with_an_example(name: str) -> None:
    result = run(*name.split(), "--help")
    assert result.exit_code == 0
    assert f"\n  Example:\n    autoshard {name}" in result.stdout


@pytest.mark.parametrize("name", main.commands)
def test_examples_name_options_that_exist(name: str) -> None:
    command = main.commands[name]
    example = (command.epilog or "").split(f"autoshard {name}")[1]
    known = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in example.split() if word.startswith("-")} <= known
    context = click.Context(command)
    command.parse_args(context, example.split())


def test_version_is_that_of_the_distribution() -> None:
    assert run("--version").stdout.startswith("autoshard, version ")


def test_shell_completion_knows_the_commands() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from autoshard.cli import main; main(prog_name='autoshard')"],
        env={
            **os.environ,
            "_AUTOSHARD_COMPLETE": "bash_complete",
            "COMP_WORDS": "autoshard re",
            "COMP_CWORD": "1",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "plain,refine\nplain,report\n"


def test_letters_the_output_cannot_show_are_replaced(folder: Path) -> None:
    save_plan(replace(gpt_plan(), function="größe"), "plan.json")
    command = "from autoshard.cli import main; main(['report', 'plan.json'])"
    done = subprocess.run(
        [sys.executable, "-c", command],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        cwd=folder,
        capture_output=True,
        check=True,
    )
    assert done.stdout.startswith(b"gr??e on 8 x tpu-v5e")
