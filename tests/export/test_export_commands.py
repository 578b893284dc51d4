"""`autoshard export`, `autoshard explain` and planning a module file."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from autoshard.cli import main
from autoshard.export import verify_module
from cost_models import format_hardware, get_hardware

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
    return {"w1": float32(64, 256), "w2": float32(256, 64)}, float32(4096, 64)

def other_step(params, batch):
    return train_step(params, batch * 2)

autoshard_args_other_step = autoshard_args_train_step
"""

MODULE = """sdy.mesh @mesh = <["data"=2, "model"=4]>
func.func @main(%a: tensor<4096x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>},
                %b: tensor<64x64xf32>) -> tensor<4096x64xf32> {
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
      : (tensor<4096x64xf32>, tensor<64x64xf32>) -> tensor<4096x64xf32>
  return %0 : tensor<4096x64xf32>
}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "model.mlir").write_text(MODULE)
    yield tmp_path
    sys.modules.pop("train", None)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


TARGET = "train:train_step"


def _planned(target: str = TARGET) -> None:
    done = run("plan", target, "--mesh", "data=2,model=4", "--no-baselines", "--out", "plan.json")
    assert done.exit_code == 0, done.output


def test_a_plan_and_its_function_are_enough_to_export_the_program(
    folder: Path,
) -> None:
    _planned()
    done = run("export", "plan.json", TARGET, "-o", "out.mlir", "--stage", "collectives")
    assert (done.exit_code, done.stderr) == (0, "")
    text = (folder / "out.mlir").read_text()
    assert done.stdout == f"wrote out.mlir: stage collectives, {text.count(chr(10))} lines\n"
    assert verify_module(text) == ()
    assert "sdy.reshard" not in text


def test_the_function_may_be_named_and_must_be_the_one_planned(folder: Path) -> None:
    _planned()
    assert run("export", "plan.json", "train:train_step", "-o", "a.mlir").exit_code == 0
    done = run("export", "plan.json", "train:other_step", "-o", "b.mlir")
    assert done.exit_code == 2
    assert done.stderr.startswith("error: the plan was made for another program: ")
    assert not (folder / "b.mlir").exists()


def test_a_module_file_is_planned_and_written_back(folder: Path) -> None:
    done = run("plan", "model.mlir", "--mesh", "data=2,model=4", "--out", "planned.mlir")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith("model.mlir on 8 x cpu-host, mesh data=2, model=4\n")
    text = (folder / "planned.mlir").read_text()
    assert (
        '%arg0: tensor<4096x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}' in text
    )


def test_a_module_file_is_planned_saved_and_exported(folder: Path) -> None:
    _planned("model.mlir")
    done = run("export", "plan.json", "-o", "out.mlir", "--stage", "explicit")
    assert (done.exit_code, done.stderr) == (0, "")
    assert verify_module((folder / "out.mlir").read_text()) == ()


def test_a_module_changed_since_is_not_exported(folder: Path) -> None:
    _planned("model.mlir")
    (folder / "model.mlir").write_text(MODULE.replace("4096", "2048"))
    done = run("export", "plan.json", "-o", "out.mlir")
    assert (done.exit_code, done.stderr) == (
        2,
        "error: the plan was made for another module\n"
        "  where: plan.json, and model.mlir as it is now\n"
        "  fix: name the module it was planned from, or plan again\n",
    )
    assert not (folder / "out.mlir").exists()


@pytest.mark.parametrize("out", ["no.mlir", "no.json"])
def test_a_damaged_module_is_told_with_its_line_and_nothing_is_written(
    folder: Path, out: str
) -> None:
    (folder / "cut.mlir").write_text(MODULE[: MODULE.index("dot_general") + 5])
    done = run("plan", "cut.mlir", "--mesh", "data=8", "--out", out)
    assert (done.exit_code, done.stderr) == (
        2,
        "error: the module does not parse: custom op 'stablehlo.dot_g' is unknown\n"
        "  where: cut.mlir, line 4, column 8\n"
        "      %0 = stablehlo.dot_g\n"
        "           ^\n"
        "  fix: pass the whole module, written for this version of StableHLO\n",
    )
    assert not (folder / out).exists()


@pytest.mark.parametrize("command", ["export", "plan"])
def test_a_folder_is_no_file_to_write(folder: Path, command: str) -> None:
    _planned()
    (folder / "out.mlir").mkdir()
    given = {
        "export": ("export", "plan.json", "-o", "out.mlir"),
        "plan": ("plan", "model.mlir", "--mesh", "data=8", "--out", "out.mlir"),
    }
    done = run(*given[command])
    assert (done.exit_code, done.stderr) == (
        2,
        "error: the file cannot be written: it is a folder, not a regular file\n"
        "  where: --out out.mlir\n"
        "  fix: name a file in a folder that exists and that you may write to\n",
    )


def test_where_nothing_can_be_written_nothing_is_traced() -> None:
    _planned()
    done = run("export", "plan.json", "-o", "gone/out.mlir")
    assert done.exit_code == 2
    assert done.stderr.startswith("error: the file cannot be written: No such file or directory\n")


def test_a_plan_is_explained_against_propagation() -> None:
    _planned()
    done = run("explain", "plan.json", TARGET, "--against", "propagation", "--inputs", "program")
    assert (done.exit_code, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("Shardy's propagation alone, from the program as written: ")
    assert "the plan saves" in lines[1]
    assert "train.py:" in done.stdout


MACHINE = "my-hosts.yaml"


def _described_machine(folder: Path) -> None:
    machine = replace(get_hardware("cpu-host"), name="my-hosts")
    (folder / MACHINE).write_text(format_hardware(machine))


def test_a_plan_for_a_machine_from_a_file_is_explained_and_exported_with_that_file(
    folder: Path,
) -> None:
    _described_machine(folder)
    options = ("--mesh", "data=2,model=4", "--no-baselines")
    done = run("plan", "model.mlir", *options, "--hardware", MACHINE, "--out", "plan.json")
    assert done.exit_code == 0, done.output
    told = (
        "error: the plan is for my-hosts, which is no machine known by name\n"
        "  where: plan.json\n"
        "  fix: name the file that describes it: --hardware machine.yaml\n"
    )
    final = ("export", "plan.json", "-o", "out.mlir", "--stage", "collectives")
    for command in (("explain", "plan.json"), final):
        done = run(*command)
        assert (done.exit_code, done.stderr) == (2, told)
        done = run(*command, "--hardware", MACHINE)
        assert (done.exit_code, done.stderr) == (0, "")


def test_the_file_of_another_machine_is_refused(folder: Path) -> None:
    _planned("model.mlir")
    _described_machine(folder)
    done = run("explain", "plan.json", "--hardware", MACHINE)
    assert (done.exit_code, done.stderr) == (
        2,
        "error: the plan is for cpu-host, and the file describes my-hosts\n"
        "  where: --hardware my-hosts.yaml\n"
        "  fix: name the file of the machine planned for, or plan again\n",
    )
