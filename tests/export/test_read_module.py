"""The way in: modules that came from elsewhere, planned with their annotations kept."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.export
import numpy as np
import pytest
from jax.sharding import AbstractMesh

import autoshard
from autoshard.export import verify_module
from autoshard.export.read_module import read_module
from autoshard.mlir_modules import module_bytecode, module_context, parse_module
from autoshard.sharding import Mesh, MeshAxis, format_sharding
from tests.export.programs import PROGRAMS, train_arguments, train_step

MESH = "x=2,y=4"

ANNOTATED = """
sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @main(
    %rows: tensor<64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
    %free: tensor<64x64xf32>)
    -> (tensor<64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>}, tensor<64x64xf32>) {
  %0 = stablehlo.dot_general %rows, %free, contracting_dims = [1] x [0]
      : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{"y"}, {"x"}]> : tensor<64x64xf32>
  %2 = call @twice(%1) : (tensor<64x64xf32>) -> tensor<64x64xf32>
  %3 = stablehlo.tanh %2
      {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x", "y"}]>]>} : tensor<64x64xf32>
  sdy.sharding_group %3 group_id=4 : tensor<64x64xf32>
  %4 = stablehlo.negate %free : tensor<64x64xf32>
  sdy.sharding_group %4 group_id=4 : tensor<64x64xf32>
  return %3, %4 : tensor<64x64xf32>, tensor<64x64xf32>
}
func.func private @twice(%a: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %0 = stablehlo.add %a, %a : tensor<64x64xf32>
  return %0 : tensor<64x64xf32>
}
"""


@pytest.fixture(scope="module")
def annotated() -> autoshard.Plan:
    return autoshard.optimize_module(ANNOTATED, mesh=MESH, hardware="cpu-host", baselines=False)


def test_annotations_are_kept(annotated: autoshard.Plan) -> None:
    data = annotated.data
    assert format_sharding(data.arguments[0].sharding) == '<@mesh, [{"x"}, {}]>'
    assert format_sharding(data.results[0].sharding) == '<@mesh, [{}, {"y"}]>'
    shown = {path: format_sharding(sharding) for path, sharding in data.values.items()}
    assert shown["1.0"] == '<@mesh, [{"y"}, {"x"}]>'
    together = [text for text in shown.values() if text == '<@mesh, [{}, {"x", "y"}]>']
    assert len(together) >= 2  # the tanh, and the negation of its group


def test_a_function_called_is_inlined_and_its_ops_are_named(annotated: autoshard.Plan) -> None:
    text = annotated.stablehlo()
    assert "call @" not in text
    assert "stablehlo.add" in text


def test_what_was_planned_has_no_conflict_at_the_end(annotated: autoshard.Plan) -> None:
    assert verify_module(annotated.stablehlo("collectives")) == ()


def test_it_computes_what_the_module_says(annotated: autoshard.Plan) -> None:
    rng = np.random.default_rng(0)
    rows, free = (rng.normal(size=(64, 64)).astype(np.float32) for _ in range(2))
    placed = [
        jax.device_put(a, s) for a, s in zip((rows, free), annotated.in_shardings, strict=True)
    ]
    first, second = jax.jit(annotated.export().call)(*placed)
    np.testing.assert_allclose(np.asarray(first), np.tanh(2 * (rows @ free)), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(np.asarray(second), -free)


def _text() -> str:
    return str(jax.jit(train_step).lower(*train_arguments()).as_text())


def test_a_lowered_jax_program_gets_the_plan_of_its_function() -> None:
    """Nothing but text goes in, and the predicted time is that of the function."""
    by_text = autoshard.optimize_module(_text(), mesh=MESH, hardware="cpu-host", baselines=False)
    by_function = autoshard.optimize(
        train_step, *train_arguments(), mesh=MESH, hardware="cpu-host", baselines=False
    )
    assert by_text.data.seconds == pytest.approx(by_function.data.seconds, rel=0.05)


def test_text_bytecode_and_the_portable_form_of_jax_export_give_one_plan() -> None:
    text = _text()
    with module_context():
        bytecode = module_bytecode(parse_module(text))
    portable = jax.export.export(jax.jit(train_step))(
        *jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), train_arguments())
    ).mlir_module_serialized
    plans = [
        autoshard.optimize_module(content, mesh=MESH, hardware="cpu-host", baselines=False).data
        for content in (text, bytecode, portable)
    ]
    shardings = [[tensor.sharding for tensor in plan.arguments] for plan in plans]
    assert shardings[0] == shardings[1] == shardings[2]


def test_a_manual_computation_stays_one() -> None:
    function, args = PROGRAMS["mapped"]
    with jax.sharding.use_abstract_mesh(AbstractMesh((2, 4), ("x", "y"))):
        staged = jax.jit(function).trace(*args)
    text = str(staged.lower(lowering_platforms=("cpu",)).as_text())
    plan = autoshard.optimize_module(text, mesh=MESH, hardware="cpu-host", baselines=False)
    assert 'manual_axes={"x"}' in plan.stablehlo()
    assert verify_module(plan.stablehlo("collectives")) == ()


def test_a_loop_of_unknown_length_is_named_by_its_line() -> None:
    loop = """func.func @main(%a: tensor<64xf32>, %n: tensor<i32>) -> tensor<64xf32> {
  %c = stablehlo.constant dense<1> : tensor<i32>
  %z = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %z, %t = %a) : tensor<i32>, tensor<64xf32>
  cond {
    %p = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %k = stablehlo.add %i, %c : tensor<i32>
    %b = stablehlo.tanh %t : tensor<64xf32>
    stablehlo.return %k, %b : tensor<i32>, tensor<64xf32>
  }
  return %0#1 : tensor<64xf32>
}"""
    (note,) = autoshard.optimize_module(
        loop, mesh="x=8", hardware="cpu-host", baselines=False
    ).data.notes
    assert note == (
        "loop with unknown trip count: taken as 10 (module:4); pass trip_counts={'file.py:line': n}"
    )
    told = autoshard.optimize_module(
        loop, mesh="x=8", hardware="cpu-host", baselines=False, trip_counts={"module:4": 7}
    )
    assert told.data.notes == ()


def test_two_readings_of_one_module_are_one_program() -> None:
    mesh = Mesh((MeshAxis("x", 2), MeshAxis("y", 4)))
    first, second = (read_module(ANNOTATED, mesh) for _ in range(2))
    assert first.record == second.record
    other = read_module(ANNOTATED.replace("negate", "abs"), mesh)
    assert other.record.fingerprint != first.record.fingerprint


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(autoshard.InputError) as error:
        autoshard.optimize_module(tmp_path / "gone.mlir", mesh=MESH, hardware="cpu-host")
    assert str(error.value) == (
        "the module cannot be read: No such file or directory\n"
        f"  where: {tmp_path / 'gone.mlir'}\n"
        "  fix: name a file that exists and that you may read"
    )
