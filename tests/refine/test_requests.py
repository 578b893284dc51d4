"""What cannot be refined is refused before anything is compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import pytest
from click.testing import CliRunner
from jax.sharding import PartitionSpec as P

import autoshard
from autoshard.aot import installed, kept_compiles, verify
from autoshard.aot.compile_process import CompileFailure
from autoshard.cli import main
from autoshard.errors import InputError, PlanError
from autoshard.plan import Plan
from tests.aot.compilers import at_once
from tests.refine.programs import BATCH, PARAMS, planned, step


@pytest.fixture(autouse=True)
def nothing_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("a compile began")

    monkeypatch.setattr(verify, "kept_or_compiling", refuse)


@pytest.mark.parametrize(
    ("target", "options", "what"),
    [
        ("v9z:2x4", {}, "v9z"),
        ("v5e:4x4", {}, "16"),
        ("16xH100", {}, "16"),
        ("8xH100", {}, "the plan is for tpu-v5e, and 8xH100 is h100"),
        ("v5e:2x4", {"rounds": 0}, "0 rounds compile nothing"),
        ("v5e:2x4", {"rounds": True}, "True rounds compile nothing"),
        ("v5e:2x4", {"minutes": 0}, "0 is no time to compile in"),
        ("v5e:2x4", {"minutes": float("nan")}, "nan is no time to compile in"),
        ("v5e:2x4", {"minutes": float("inf")}, "refining has to end"),
        (7, {}, "expected a target, found int"),
        ("v5e:2x4", {"candidates": [P("no_such_axis")]}, "no_such_axis"),
        ("v5e:2x4", {"candidates": [({}, {}, {})]}, "does not match what it is for"),
    ],
)
def test_bad_input_is_refused(target: Any, options: dict[str, Any], what: str) -> None:
    with pytest.raises(autoshard.AutoshardError, match=what):
        planned().refine(target, **options)


def test_a_misspelt_target_is_told_that_it_may_be_measured_too() -> None:
    with pytest.raises(InputError) as refused:
        planned().refine("mesure")
    assert '"measure" runs the step on them' in str(refused.value)


def test_a_candidate_for_another_program_is_refused() -> None:
    other = autoshard.optimize(
        lambda x: x * 2,
        jax.ShapeDtypeStruct((8, 8), "float32"),
        mesh="data=2,model=4",
        hardware="cpu-host",
    )
    with pytest.raises(InputError, match="made for another program"):
        planned().refine("v5e:2x4", candidates={"theirs": other})


def test_shardings_that_contradict_what_was_asked_are_refused_before_anything_compiles() -> None:
    plan = planned(in_shardings=(None, P("data")))
    with pytest.raises(InputError, match="contradict what the program or its caller fixes"):
        plan.refine("v5e:2x4", candidates=[(P(), P(None, "model"))])


def test_a_candidate_for_another_mesh_is_refused() -> None:
    with pytest.raises(InputError, match="is for the mesh"):
        planned().refine("v5e:2x4", candidates=[planned(mesh="data=8")])


def test_a_plan_from_a_file_says_how_it_is_refined(tmp_path: Path) -> None:
    planned().save(tmp_path / "plan.json")
    loaded = autoshard.load_plan(tmp_path / "plan.json", step, PARAMS, BATCH)
    with pytest.raises(PlanError, match="read from a file"):
        loaded.refine("v5e:2x4")


def test_optimize_refuses_an_unknown_target_before_it_plans() -> None:
    def untraced(_: Any) -> Any:
        raise AssertionError("it was traced")

    with pytest.raises(InputError):
        autoshard.optimize(untraced, BATCH, mesh="data=8", hardware="cpu-host", refine="v9z:2x4")


def test_without_a_machine_the_plan_is_for_the_one_to_compile_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Plan, "refine", lambda plan, *_: plan)
    monkeypatch.setattr(installed, "_is_there", lambda _: True)
    plan = autoshard.optimize(lambda x: x * 2, BATCH, mesh="data=8", refine="8xH100")
    assert plan.data.hardware == "h100"


FILE = """
format: autoshard corrections
version: 4
function: {function}
program: '00'
hardware: tpu-v5e
compiler: libtpu 1
corrections:
  ratio_by_class: {{elementwise: 3.0, matmul: 2.0}}
  choices: []
  reshards: []
  memory: []
  num_ops: {num_ops}
  is_of_other_sizes: false
"""


def test_corrections_of_another_function_are_refused_by_optimize(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(FILE.format(function="other", num_ops=1))
    with pytest.raises(InputError, match="of other, and the plan is of step"):
        planned.__wrapped__(corrections=path, baselines=False)


def test_a_plan_of_another_batch_starts_from_corrections_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(FILE.format(function="step", num_ops=1))
    plan = planned.__wrapped__(corrections=path, baselines=False)
    assert plan.solution is not None
    assert plan.solution.correction_seconds > 0
    note = f"costs corrected from {path}: 2 classes of ops, as compiled by libtpu 1 at another"
    assert any(one.startswith(note) for one in plan.data.notes)
    assert "2 classes of ops" in " ".join(str(plan).split())


def test_a_plan_that_was_not_refined_has_no_corrections_to_write(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="was not refined"):
        planned().save_corrections(tmp_path / "c.yaml")


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--target", "v9z:2x4"], "v9z"),
        (["--target", "v5e:4x4"], "16"),
        (["--target", "v5p:2x2x2"], "the plan is for tpu-v5e, and v5p:2x2x2 is tpu-v5p"),
        (["--target", "v5e:2x4", "--rounds", "0"], "0 rounds compile nothing"),
        (["--target", "v5e:2x4", "--out", "/no/such/folder/p.json"], "there is no folder"),
        (["--target", "v5e:2x4", "--candidate", "none.json"], "none.json"),
    ],
)
def test_the_command_refuses_the_same(tmp_path: Path, arguments: list[str], what: str) -> None:
    path = tmp_path / "plan.json"
    planned().save(path)
    found = CliRunner().invoke(
        main, ["refine", str(path), "tests.refine.programs:step", *arguments]
    )
    assert found.exit_code == 2, found.output
    assert what in found.output
    assert "a compile began" not in found.output


MODULE = """
module {
  func.func public @main(%a: tensor<64x32xf32>, %b: tensor<32x64xf32>) -> tensor<64x64xf32> {
    %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
      : (tensor<64x32xf32>, tensor<32x64xf32>) -> tensor<64x64xf32>
    return %0 : tensor<64x64xf32>
  }
}
"""


def test_a_module_is_refined_where_it_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    failure = CompileFailure(kind="refused", what="not this one")
    monkeypatch.undo()
    monkeypatch.setattr(installed, "_is_there", lambda _: True)
    monkeypatch.setattr(kept_compiles, "compiling", at_once(lambda *_: failure))
    plan = autoshard.optimize_module(
        MODULE, mesh="data=2,model=4", hardware="tpu-v5e", refine="v5e:2x4"
    )
    assert plan.data.refinement is not None
    assert {one.status for one in plan.data.refinement.tried} == {"refused"}


@pytest.mark.parametrize(
    ("target", "what"), [("v9z:2x4", "v9z"), ("measure", "a module is compiled, and not run")]
)
def test_a_module_refuses_a_target_before_it_is_read(target: str, what: str) -> None:
    with pytest.raises(InputError, match=what):
        autoshard.optimize_module("no module", mesh="data=8", hardware="cpu-host", refine=target)
