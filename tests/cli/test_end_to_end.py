"""The command line on a real function: trace, plan, save, report, compare."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from autoshard.cli import main
from autoshard.plans.plan_json import load_plan_data, save_plan
from autoshard.report import format_report

TRAIN = """
import jax
import jax.numpy as jnp


def loss(params, batch):
    hidden = jnp.tanh(batch @ params["w1"])
    return ((hidden @ params["w2"]) ** 2).mean()


def train_step(params, batch):
    gradients = jax.grad(loss)(params, batch)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)


def autoshard_args_train_step():
    float32 = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    params = {"w1": float32(64, 256), "w2": float32(256, 64)}
    return {"args": (params, float32(32, 64)), "donate_argnums": 0}


def broken(x):
    return x @ x


def autoshard_args_broken():
    return (jax.ShapeDtypeStruct((2, 3), jnp.float32),)
"""


@pytest.fixture(autouse=True)
def module(folder: Path) -> None:
    (folder / "train.py").write_text(TRAIN)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def test_a_training_step_is_planned_saved_reported_and_compared(folder: Path) -> None:
    plan = ("plan", "train:train_step", "--mesh", "data=2,model=4")
    done = run(*plan, "--out", "a.json")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith("train_step on 8 x cpu-host, mesh data=2, model=4\n")

    data = load_plan_data(folder / "a.json")
    assert data.is_feasible
    assert [tensor.name for tensor in data.arguments] == ["params['w1']", "params['w2']", "batch"]
    assert run("report", "a.json").stdout == format_report(data) == done.stdout

    assert run(*plan, "--out", "b.json").exit_code == 0
    assert run("diff", "a.json", "b.json").stdout == "The plans are the same.\n"
    assert run(*plan[:-1], "data=8", "--out", "c.json").exit_code == 0
    compared = run("diff", "a.json", "c.json")
    assert compared.exit_code == 1
    assert compared.stdout.startswith("a.json -> c.json\n\nProgram")


def test_a_mesh_is_searched_and_saved_with_the_plan(folder: Path) -> None:
    done = run("plan", "train:train_step", "--devices", "8", "--out", "plan.json")
    assert (done.exit_code, done.stderr) == (0, "")
    data = load_plan_data(folder / "plan.json")
    assert data.mesh_search is not None
    assert data.mesh.num_devices == 8
    assert "\nMeshes  4 of as many devices" in done.stdout


def test_without_a_mesh_and_a_number_of_devices_both_are_told(folder: Path) -> None:
    done = run("plan", "train:train_step", "--out", "plan.json")
    assert (done.exit_code, done.stdout) == (2, "")
    said = "error: neither a mesh nor a number of devices is given, and jax.set_mesh has set none\n"
    assert done.stderr.startswith(said)
    assert not (folder / "plan.json").exists()


def test_a_saved_plan_that_fits_no_budget_is_refined_from_the_plans_there_are(folder: Path) -> None:
    plan = ("plan", "train:train_step", "--mesh", "data=8")
    assert run(*plan, "--out", "plan.json").exit_code == 0
    file = folder / "plan.json"
    fitting = load_plan_data(file)
    save_plan(
        replace(fitting, memory_budget=1, solver=replace(fitting.solver, status="infeasible")), file
    )
    asked = ("--target", "measure", "--rounds", "1", "--minutes", "1", "--out", "refined.json")
    done = run("refine", "plan.json", "train:train_step", *asked)
    assert "there is no plan" not in done.stderr
    assert done.exit_code == 1
    assert "error: no plan compiled within the memory budget" in done.stderr


def test_a_budget_too_small_is_reported_with_the_bytes_missing(folder: Path) -> None:
    plan = ("plan", "train:train_step", "--mesh", "data=8")
    done = run(*plan, "--memory", "1kB", "--out", "plan.json")
    assert done.exit_code == 1
    said = " ".join(done.stdout.split())
    assert "over the budget of 1,000 bytes (1.00 kB) per device, at " in said
    assert done.stderr.startswith("error: no plan was found (infeasible)")
    assert not (folder / "plan.json").exists()


def test_a_function_that_does_not_trace_is_told_without_a_traceback(folder: Path) -> None:
    done = run("plan", "train:broken", "--mesh", "data=2", "--out", "plan.json")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    assert "train.py:" in done.stderr
    assert not (folder / "plan.json").exists()


def test_an_unknown_machine_is_told() -> None:
    arguments = ("plan", "train:train_step", "--mesh", "data=2", "--hardware", "tpu-v5")
    done = run(*arguments)
    assert done.exit_code == 2
    assert done.stderr.startswith('error: no hardware is named "tpu-v5"\n')


MLP = """
import jax
import jax.numpy as jnp


def mlp(params, x):
    return jax.nn.relu(x @ params["w1"]) @ params["w2"]


def autoshard_args_mlp():
    matrix = jax.ShapeDtypeStruct((512, 512), jnp.float32)
    return {"w1": matrix, "w2": matrix}, matrix
"""


def test_a_plan_with_products_in_steps_is_saved_exported_and_explained(folder: Path) -> None:
    (folder / "mlp.py").write_text(MLP)
    plan = ("plan", "mlp:mlp", "--mesh", "data=8", "--memory", "1250000", "--no-baselines")
    assert run(*plan, "--schedules", "none").exit_code == 1
    assert run(*plan, "--out", "plan.json").exit_code == 0
    assert len(load_plan_data(folder / "plan.json").schedules) == 2
    assert run("export", "plan.json", "mlp:mlp", "-o", "mlp.mlir").exit_code == 0
    assert (folder / "mlp.mlir").read_text().count("sdy.manual_computation(") == 2
    for again in (["explain", "plan.json"], ["why", "plan.json", 'params["w1"]']):
        done = run(*again, "mlp:mlp")
        assert (done.exit_code, done.stderr) == (0, "")
