"""`autoshard why` and `autoshard code` on a saved plan."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from autoshard.cli import main
from autoshard.plans.plan_json import load_plan_data, save_plan

TRAIN = """
import jax
import jax.numpy as jnp

def train_step(params, x):
    hidden = jnp.tanh(x @ params["w1"])
    return jax.tree.map(lambda w: 0.9 * w, params), jnp.sum(hidden @ params["w2"])

def autoshard_args():
    def f32(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    return {"args": ({"w1": f32(128, 510), "w2": f32(510, 128)}, f32(64, 128)), "donate_argnums": 0}
"""
ASKED = """
pins:
  'params["w1"]': '[{"model"}, {?}]'
"""


PLAN = ("plan", "train:train_step", "--mesh", "data=2,model=4", "--no-baselines")


@pytest.fixture(autouse=True)
def plan_file(folder: Path) -> Path:
    (folder / "train.py").write_text(TRAIN)
    (folder / "asked.yaml").write_text(ASKED)
    made = run(*PLAN, "--constraints", "asked.yaml", "--out", "plan.json")
    assert made.exit_code == 0, made.output
    return folder / "plan.json"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, [os.fspath(argument) for argument in arguments])


def test_why_tells_of_alternatives_and_what_forbids_the_rest() -> None:
    result = run(
        "why", "plan.json", 'params["w2"]', "train:train_step", "--constraints", "asked.yaml"
    )
    assert (result.exit_code, result.stderr) == (0, "")
    data = load_plan_data("plan.json")
    lines = result.stdout.splitlines()
    assert lines[0] == "params['w2']: f32[510, 128]"
    assert f"{data.seconds * 1e6:.3g} us a step" in lines[2]
    assert "alike     result[0]['w2'], the result that replaces this donated argument" in lines
    assert any(line.split() == "0 model 510 is no multiple of 4".split() for line in lines)
    assert "Other shardings  " in result.stdout
    assert lines[-1] == "  - train:train_step was planned again to price this"


def test_why_explains_the_plan_of_the_file_whatever_planning_again_would_find() -> None:
    Path("both.yaml").write_text(ASKED + "  'params[\"w2\"]': '[{}, {\"model\"}]'\n")
    made = run(*PLAN, "--constraints", "both.yaml", "--out", "worse.json")
    assert made.exit_code == 0, made.output
    worse = load_plan_data("worse.json")
    best = load_plan_data("plan.json")
    assert worse.arguments[1].sharding != best.arguments[1].sharding
    save_plan(replace(worse, asked=best.asked), "plan.json")
    result = run(
        "why", "plan.json", 'params["w2"]', "train:train_step", "--constraints", "asked.yaml"
    )
    assert result.exit_code == 0, result.output
    assert "sharding  P(None, 'model'), " in result.stdout
    assert f"{worse.seconds * 1e6:.3g} us a step" in result.stdout


def test_without_planning_again_why_tells_what_the_file_knows() -> None:
    result = run("why", "plan.json", 'params["w1"]', "--no-replan")
    assert result.exit_code == 0
    assert 'asked     pin `params["w1"]` (asked.yaml:3): [{"model"}, {?}]\n' in result.stdout
    assert "Other shardings" not in result.stdout
    assert "this is what the plan knows by itself" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ['params["w3"]', "--constraints", "asked.yaml"],
            'error: `params["w3"]` selects nothing in this program\n'
            '  where: the tensor `params["w3"]`\n'
            "  fix: did you mean `params['w2']`, `params['w1']`?\n",
        ),
        (
            ['params["w1"]'],
            'error: the plan was made with other constraints: pin `params["w1"]` (asked.yaml:3):'
            ' [{"model"}, {?}]\n'
            "  where: plan.json, and the constraints given now\n"
            "  fix: give the file they are in: --constraints asked.yaml\n",
        ),
        (
            ["train.py:6", "--no-replan"],
            "error: a plan by itself knows no source lines\n"
            "  where: the tensor `train.py:6`\n"
            "  fix: name an argument, a result or a path, or let the program be planned again\n",
        ),
    ],
)
def test_what_cannot_be_explained_is_one_message(arguments: list[str], message: str) -> None:
    result = run("why", "plan.json", *arguments, "train:train_step")
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", message)


def test_why_refuses_another_program(folder: Path) -> None:
    (folder / "other.py").write_text(TRAIN.replace("0.9", "0.8"))
    result = run("why", "plan.json", "x", "other:train_step", "--constraints", "asked.yaml")
    assert result.exit_code == 2
    assert result.stderr == (
        "error: the plan was made for another program\n"
        "  where: plan.json, and other:train_step as it is now\n"
        "  fix: plan again, or take the program the plan was made for\n"
    )


@pytest.mark.parametrize(
    ("command", "fix"),
    [
        (["why", "plan.json", 'a["b"]'], "why plan.json 'a[\"b\"]' {}"),
        (["code", "plan.json"], "code plan.json {}"),
        (["explain", "plan.json"], "explain plan.json {}"),
        (["export", "plan.json", "-o", "out.mlir"], "export plan.json {} -o FILE"),
        (["verify", "plan.json"], "verify plan.json {}"),
    ],
    ids=lambda given: given[0] if isinstance(given, list) else "",
)
@pytest.mark.parametrize(
    ("target", "shown"),
    [
        ("train:train_step", "train:train_step"),
        ("evil:run", "evil:run"),
        ("evil:run; rm -rf ~", "MODULE:FUNCTION"),
        ("", "MODULE:FUNCTION"),
    ],
)
def test_code_that_a_plan_file_names_is_not_imported(
    folder: Path, command: list[str], fix: str, target: str, shown: str
) -> None:
    (folder / "evil.py").write_text("from pathlib import Path\nPath('ran').touch()\n")
    save_plan(replace(load_plan_data("plan.json"), target=target), "plan.json")
    result = run(*command)
    assert (result.exit_code, result.stderr) == (
        2,
        "error: the plan was made from a function, and only a function that you name is imported\n"
        "  where: plan.json\n"
        f"  fix: name it: autoshard {fix.format(shown)}\n",
    )
    assert not (folder / "ran").exists()


def test_code_is_python_that_makes_the_shardings() -> None:
    result = run("code", "plan.json", "train:train_step")
    assert (result.exit_code, result.stderr) == (0, "")
    names: dict[str, Any] = {}
    exec(result.stdout, names)
    (params, _) = names["in_shardings"]
    assert params["w1"].spec[0] == "model"
