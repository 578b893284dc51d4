"""What a module says of shardings beside constraints: openness, priorities, borders, edges."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import autoshard
from autoshard.export import verify_module
from autoshard.sharding import format_sharding

MESH = 'sdy.mesh @mesh = <["x"=2, "y"=4]>'
T = "tensor<2048x2048xf32>"
DOT = (
    "  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]"
    " : (TENSOR, TENSOR) -> TENSOR\n"
    "  %1 = stablehlo.tanh %0 : TENSOR\n  return %1 : TENSOR"
)


def module(a: str = "", b: str = "", result: str = "", *, ops: str = DOT, mesh: str = MESH) -> str:
    def marked(sharding: str) -> str:
        return f"{{sdy.sharding = #sdy.sharding<{sharding}>}}" if sharding else ""

    body = ops.replace("TENSOR", T)
    head = f"func.func @main(%a: {T} {marked(a)}, %b: {T} {marked(b)}) -> ({T} {marked(result)})"
    return f"{mesh}\n{head} {{\n{body}\n}}"


def planned(text: str) -> autoshard.Plan:
    return autoshard.optimize_module(text, mesh="x=2,y=4", hardware="cpu-host", baselines=False)


def boundary(plan: autoshard.Plan) -> list[str]:
    data = plan.data
    return [format_sharding(tensor.sharding) for tensor in (*data.arguments, *data.results)]


def test_what_is_closed_is_final_and_what_is_open_is_extended() -> None:
    first, _, result = boundary(planned(module('@mesh, [{"x"}, {}]', "", "@mesh, [{?}, {}]")))
    assert first == '<@mesh, [{"x"}, {}]>'
    assert result.endswith(", {}]>")
    closed, _, _ = boundary(planned(module("@mesh, [{}, {}]")))
    assert closed == "<@mesh, [{}, {}]>"
    opened, _, _ = boundary(planned(module('@mesh, [{"y", ?}, {?}]')))
    assert opened.startswith('<@mesh, [{"y"')


def test_priorities_of_a_module_are_rounds() -> None:
    plan = planned(module('@mesh, [{"x", ?}p0, {?}p2]', '@mesh, [{?}, {"y"}p1]'))
    assert [decided.priority for decided in plan.data.rounds] == [0, 1, 2]


def test_an_axis_said_to_be_replicated_cuts_nothing_there() -> None:
    first, _, _ = boundary(planned(module('@mesh, [{?}, {?}], replicated={"x"}')))
    assert '"x"' not in first


def test_shardings_on_another_mesh_over_the_same_devices_are_kept() -> None:
    meshes = MESH + '\nsdy.mesh @flat = <["z"=8]>'
    first, _, _ = boundary(planned(module('@flat, [{"z"}, {}]', mesh=meshes)))
    assert first == '<@mesh, [{"x", "y"}, {}]>'


NAMED = """  %0 = sdy.named_computation<"block">(%a, %b)
      in_shardings=[<@mesh, [{"x"}, {}]>, <@mesh, [{?}, {?}]>]
      out_shardings=[<@mesh, [{}, {"y"}]>] (%c: TENSOR, %d: TENSOR) {
    %2 = stablehlo.dot_general %c, %d, contracting_dims = [1] x [0] : (TENSOR, TENSOR) -> TENSOR
    sdy.return %2 : TENSOR
  } : (TENSOR, TENSOR) -> TENSOR
  %1 = stablehlo.tanh %0 : TENSOR
  return %1 : TENSOR"""


def test_a_named_computation_is_planned_inside_and_its_borders_are_kept() -> None:
    plan = planned(module(ops=NAMED))
    text = plan.stablehlo()
    assert "named_computation" not in text
    assert '<@mesh, [{"x"}, {}]>' in text
    assert '<@mesh, [{}, {"y"}]>' in text
    assert verify_module(plan.stablehlo("collectives")) == ()
    rng = np.random.default_rng(0)
    a, b = ((rng.normal(size=(2048, 2048)) / 50).astype(np.float32) for _ in range(2))
    placed = [jax.device_put(v, s) for v, s in zip((a, b), plan.in_shardings, strict=True)]
    (found,) = jax.jit(plan.export().call)(*placed)
    np.testing.assert_allclose(np.asarray(found), np.tanh(a @ b), rtol=1e-3, atol=1e-5)


def test_a_module_with_data_flow_edges_is_read() -> None:
    ops = (
        "  %0 = stablehlo.optimization_barrier %a : TENSOR\n"
        '  %1 = sdy.data_flow_edge %0 sharding=<@mesh, [{"x"}, {}]> : TENSOR\n  return %1 : TENSOR'
    )
    plan = planned(module(ops=ops))
    assert format_sharding(plan.data.values["0.0"]) == '<@mesh, [{"x"}, {}]>'


@pytest.mark.parametrize(
    "text",
    [
        module(),
        module('@mesh, [{"x", ?}, {?}]'),
        module('@mesh, [{"y":(1)2}, {"y":(2)2}]'),
        module('@mesh, [{"x"}, {}]', "", "@mesh, [{?}, {}]"),
        module(ops=NAMED),
    ],
)
def test_what_was_planned_and_is_planned_again_stays_as_it_is(text: str) -> None:
    """Shardings on ops become constraints at the first reading, and no more at the second."""
    first = planned(text)
    second = planned(first.stablehlo())
    third = planned(second.stablehlo())
    assert boundary(first) == boundary(second) == boundary(third)
    assert first.data.seconds == pytest.approx(second.data.seconds)
    assert second.stablehlo() == third.stablehlo()


def test_small_floats_are_types_of_jax() -> None:
    text = "func.func @main(%a: tensor<16xf8E4M3FN>) -> tensor<16xf8E4M3FN> {\n" + (
        "  return %a : tensor<16xf8E4M3FN>\n}"
    )
    plan = autoshard.optimize_module(text, mesh="x=8", hardware="cpu-host", baselines=False)
    assert plan.data.arguments[0].dtype == "f8E4M3FN"


def test_a_loop_keeps_its_attributes_when_it_is_rebuilt_without_what_it_passes_through() -> None:
    loop = """  %z = stablehlo.constant dense<0> : tensor<i32>
  %n = stablehlo.constant dense<3> : tensor<i32>
  %k = stablehlo.constant dense<1> : tensor<i32>
  %0:3 = stablehlo.while(%i = %z, %u = %a, %w = %b) : tensor<i32>, TENSOR, TENSOR
      attributes {mhlo.frontend_attributes = {kept = "yes"}}
  cond {
    %p = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %j = stablehlo.add %i, %k : tensor<i32>
    %v = stablehlo.dot_general %u, %w, contracting_dims = [1] x [0] : (TENSOR, TENSOR) -> TENSOR
    stablehlo.return %j, %v, %w : tensor<i32>, TENSOR, TENSOR
  }
  return %0#1 : TENSOR"""
    text = planned(module(ops=loop)).stablehlo()
    assert 'kept = "yes"' in text
    assert ":2 = stablehlo.while" in text
