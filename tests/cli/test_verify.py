"""`autoshard verify`: a saved plan compiled in a process of its own, on this machine's backend."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from autoshard.cli import main

TRAIN = """
import jax
import jax.numpy as jnp


def step(w, x):
    return jnp.tanh(x @ w) @ w.T


def autoshard_args_step():
    float32 = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    return float32(64, 256), float32(32, 64)


def autoshard_args_other():
    return autoshard_args_step()


def other(w, x):
    return x @ w
"""


@pytest.fixture(autouse=True)
def module(folder: Path) -> None:
    (folder / "train.py").write_text(TRAIN)


@pytest.fixture
def plan(module: None, folder: Path) -> Path:  # noqa: ARG001
    done = run("plan", "train:step", "--mesh", "data=2,model=4", "--out", "plan.json")
    assert done.exit_code == 0, done.output
    return folder / "plan.json"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


@pytest.mark.usefixtures("plan")
def test_a_saved_plan_is_compiled_and_compared(folder: Path) -> None:
    done = run("verify", "plan.json", "train:step", "--fail-above", "500%", "--json", "found.json")
    assert (done.exit_code, done.stderr) == (0, "")
    assert "compiled for local" in done.stdout
    assert "compiled: the plan compiles as it is" in done.stdout
    found = json.loads((folder / "found.json").read_text())
    assert found["status"] == "compiled"
    assert found["predicted_bytes"] == found["compiled_bytes"]
    assert found["memory"]["predicted_argument_bytes"] == found["memory"]["argument_bytes"]


@pytest.mark.usefixtures("plan")
def test_a_plan_of_another_program_is_refused() -> None:
    done = run("verify", "plan.json", "train:other")
    assert done.exit_code == 2
    assert done.stderr.startswith("error: the plan was made for another program: ")


@pytest.mark.usefixtures("plan")
def test_a_topology_of_another_size_is_refused() -> None:
    done = run("verify", "plan.json", "train:step", "--topology", "v5e:4x4")
    assert done.exit_code == 2
    assert done.stderr == (
        "error: v5e:4x4 has 16 devices, the mesh 8\n"
        '  where: mesh <["data"=2, "model"=4]>\n'
        '  fix: compile for as many, such as "v5e:2x4", or plan for a mesh of 16\n'
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--fail-above", "some"),
            'error: expected a percentage, found "some"\n'
            "  where: --fail-above\n"
            "  fix: write it as in 5%\n",
        ),
        (
            ("--compiler-option", "xla_flag"),
            'error: expected NAME=VALUE, found "xla_flag"\n'
            "  where: --compiler-option\n"
            "  fix: write it as in xla_tpu_enable_windowed_einsum_for_all_gather=false\n",
        ),
    ],
)
def test_bad_options_are_told_before_the_plan_is_read(
    arguments: tuple[str, ...], message: str
) -> None:
    done = run("verify", "plan.json", "train:step", *arguments)
    assert (done.exit_code, done.stderr) == (2, message)


@pytest.mark.usefixtures("plan")
def test_a_difference_beyond_the_limit_ends_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "autoshard.verification.verification.Verification.bytes_difference", property(lambda _: 0.5)
    )
    monkeypatch.setattr(
        "autoshard.verification.verification.Verification.memory_difference",
        property(lambda _: -0.25),
    )
    done = run("verify", "plan.json", "train:step", "--fail-above", "20%")
    assert done.exit_code == 1
    assert done.stderr == (
        "error: bytes differ by +50.0 %, memory by -25.0 %; at most 20 % was asked for\n"
    )
