"""Arguments, results, constants and states in the graph; input that is no program."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from autoshard.backends import get_backend
from autoshard.errors import ExportError
from autoshard.frontend.module import LARGE_CONSTANT_BYTES, ModuleNames, module_to_graph
from autoshard.frontend.trace import Traced, trace
from autoshard.graph.buffers import find_buffers
from autoshard.graph.program import Graph, OpKind
from tests.frontend.exporting import MESH, array, export, names, notes, text

X = array(8, 16)
W = array(16, 16)


def argument_names(graph: Graph) -> list[str]:
    return [graph.values[op.results[0]].name for op in graph.arguments]


# -- arguments and results -------------------------------------------------------------------------


def test_arguments_returned_unchanged_and_results_returned_twice_are_kept() -> None:
    def fn(x: Any, y: Any) -> Any:
        z = y * 2
        return x, x, z, z

    assert text(export(fn, X, X)) == [
        "%0: f32[8, 16] = argument x",
        "%1: f32[8, 16] = argument y",
        "%2: f32[] = free constant",
        "%3: f32[8, 16] = free broadcast_in_dim %2",
        "%4: f32[8, 16] = multiply %1 %3  flops=128",
        "return result[0] %0",
        "return result[1] %0",
        "return result[2] %4",
        "return result[3] %4",
    ]


def test_an_unused_argument_is_still_an_argument() -> None:
    graph = export(lambda x, _: x * 2, X, W)
    assert argument_names(graph) == ["x", "_"]
    assert graph.value_by_path["in.1"] == graph.arguments[1].results[0]


def test_a_program_that_returns_a_constant_writes_it_out() -> None:
    graph = export(lambda: jnp.zeros((8, 16)))
    (result,) = graph.results
    copy = graph.ops[graph.values[result.operands[0]].op]
    assert (copy.kind, copy.name) == (OpKind.COMPUTE, "copy")
    assert graph.ops[graph.values[copy.operands[0]].op].kind is OpKind.FREE


def test_donated_arguments_are_told_by_position() -> None:
    graph = export(lambda x, y, z: (x + y, z), X, X, W, donate=(1,))
    assert graph.donated == (1,)


CAPTURING = """
func.func @main(%table: tensor<16x16xf32>, %x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %0 = stablehlo.dot_general %x, %table, contracting_dims = [1] x [0]
    : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}"""


def test_arrays_passed_before_the_arguments_are_captured() -> None:
    graph = module_to_graph(CAPTURING, ModuleNames(arguments=["x"], results=["y"], donated=[True]))
    assert argument_names(graph) == ["captured[0]", "x"]
    assert graph.num_captured == 1
    assert graph.donated == (1,)
    assert graph.value_by_path == {"const.0": 0, "in.0": 1}
    assert find_buffers(graph, get_backend("cpu")).is_stored[0]


def test_captured_arrays_written_into_the_module_keep_their_number() -> None:
    # The function captures two arrays; the first is a constant of the module.
    names = ModuleNames(
        arguments=["x"], results=["y"], donated=[False], captured=["captured[0]", "captured[1]"]
    )
    graph = module_to_graph(CAPTURING, names)
    assert argument_names(graph) == ["captured[1]", "x"]
    assert graph.value_by_path == {"const.1": 0, "in.0": 1}


def test_an_array_the_function_closes_over_may_be_a_constant() -> None:
    table = jnp.arange(256.0).reshape(16, 16)
    graph = export(lambda x: x @ table, X)
    assert (argument_names(graph), graph.num_captured) == (["x"], 0)
    product = next(op for op in graph.ops if op.name == "dot_general")
    assert graph.ops[graph.values[product.operands[1]].op].kind is OpKind.FREE


# -- constants -------------------------------------------------------------------------------------


def test_a_large_table_takes_memory_on_every_device_and_is_noted() -> None:
    side = int((LARGE_CONSTANT_BYTES // 4) ** 0.5)

    def fn(x: Any) -> Any:
        return x @ np.random.default_rng(0).normal(size=(side, side)).astype(np.float32)

    graph = export(fn, array(8, side))
    table = next(op for op in graph.ops if op.name == "constant" and op.kind is OpKind.COMPUTE)
    assert str(table.rule) == "()->([i, j]) {i=512, j=512} need_replication={i, j}"
    assert notes(graph) == [
        "a constant of 1,048,576 bytes is written into the program, whole on every device; pass it"
        " as an argument to have it cut (test_module_boundary.py)"
    ]
    buffers = find_buffers(graph, get_backend("cpu"))
    assert buffers.intervals[table.results[0]] == (0, len(graph.ops))


def test_small_tables_and_large_fills_are_free() -> None:
    def fn(x: Any) -> Any:
        small = np.random.default_rng(0).normal(size=(16, 16)).astype(np.float32)
        return x @ small, jnp.ones((1024, 1024))

    graph = export(fn, X)
    assert graph.notes == ()
    assert "constant" not in names(graph)


# -- states of other libraries ---------------------------------------------------------------------


def test_a_flax_state_with_optax_exports() -> None:
    model = nnx.eval_shape(lambda: nnx.Linear(16, 16, rngs=nnx.Rngs(0)))
    definition, params = nnx.split(model)
    optimizer = optax.adam(1e-3)
    state = (params, jax.eval_shape(optimizer.init, params))

    def step(state: Any, x: Any) -> Any:
        params, moments = state

        def loss(params: Any) -> Any:
            return jnp.mean(nnx.merge(definition, params)(x) ** 2)

        gradient = jax.grad(loss)(params)
        updates, moments = optimizer.update(gradient, moments, params)
        return optax.apply_updates(params, updates), moments

    graph = export(step, state, X, donate=(0,))
    assert graph.notes == ()
    assert graph.donated == tuple(range(len(graph.arguments) - 1))
    assert "dot_general" in names(graph)


def test_an_equinox_module_exports() -> None:
    model = eqx.filter_eval_shape(eqx.nn.MLP, 16, 16, 32, 2, key=jax.random.key(0))

    def loss(model: Any, x: Any) -> Any:
        return jnp.mean(jax.vmap(model)(x) ** 2)

    graph = export(eqx.filter_grad(loss), model, X)
    assert argument_names(graph)[0] == "model.layers[0].weight"
    assert graph.notes == ()
    assert names(graph).count("dot_general") >= 6


# -- bad input -------------------------------------------------------------------------------------


def traced_double() -> Traced:
    return trace(lambda x: x * 2, (X,), {}, mesh=MESH)


NAMES = ModuleNames(arguments=["x"], results=["result"], donated=[False])


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_cut_bytecode_is_refused(share: float) -> None:
    module = traced_double().module
    with pytest.raises(ExportError) as caught:
        module_to_graph(module[: int(len(module) * share)], NAMES)
    # No bytes at all are an empty module.
    says = "does not parse" if share else "has no function called main"
    assert says in caught.value.what
    assert caught.value.where
    assert caught.value.fix


def test_text_that_is_no_module_is_refused() -> None:
    with pytest.raises(ExportError) as caught:
        module_to_graph("this is no module", NAMES)
    assert caught.value.what.startswith("the StableHLO module does not parse: ")
    assert caught.value.where == "a module of 17 characters"


def test_a_module_without_main_is_refused() -> None:
    module = "func.func @step(%x: tensor<8xf32>) -> tensor<8xf32> { return %x : tensor<8xf32> }"
    with pytest.raises(ExportError) as caught:
        module_to_graph(module, NAMES)
    assert str(caught.value) == (
        "the module has no function called main\n"
        "  where: its functions: step\n"
        "  fix: export the program through jax.jit(...).lower or name its entry @main"
    )


def test_names_that_do_not_fit_main_are_refused() -> None:
    module = traced_double().module
    few = ModuleNames(arguments=["x", "y"], results=["result"], donated=[False, False])
    with pytest.raises(ExportError, match="main takes 1 arrays, names are given for 2 arguments"):
        module_to_graph(module, few)
    none = ModuleNames(arguments=["x"], results=[], donated=[False])
    with pytest.raises(ExportError, match="main returns 1 arrays, names are given for 0"):
        module_to_graph(module, none)


def test_a_tensor_of_unknown_size_is_refused_by_name() -> None:
    module = """
    func.func @main(%x: tensor<8xf32>, %n: tensor<i32>) -> tensor<8xf32> {
      %0 = stablehlo.set_dimension_size %x, %n, dim = 0
        : (tensor<8xf32>, tensor<i32>) -> tensor<?xf32, #stablehlo.bounds<8>> loc("m.py":3:1)
      return %x : tensor<8xf32>
    }"""
    names = ModuleNames(arguments=["x", "n"], results=["result"], donated=[False, False])
    with pytest.raises(ExportError) as caught:
        module_to_graph(module, names)
    assert caught.value.what.endswith("has no fixed size")
    assert caught.value.where == "stablehlo.set_dimension_size at m.py:3"


def test_text_and_bytecode_of_one_module_give_one_graph() -> None:
    module = """
    func.func @main(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
      %0 = stablehlo.tanh %x : tensor<8x16xf32>
      return %0 : tensor<8x16xf32>
    }"""
    assert text(module_to_graph(module, NAMES)) == [
        "%0: f32[8, 16] = argument x",
        "%1: f32[8, 16] = tanh %0  flops=128",
        "return result %1",
    ]


def test_an_op_nobody_knows_is_kept_whole_and_reported() -> None:
    module = """
    func.func @main(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
      %0 = stablehlo.custom_call @mine(%x)
        : (tensor<8x16xf32>) -> tensor<8x16xf32> loc("train.py":7:3)
      return %0 : tensor<8x16xf32>
    }"""
    graph = module_to_graph(module, NAMES)
    assert graph.notes == ("custom_call @mine has no sharding rule and is kept whole (train.py:7)",)
