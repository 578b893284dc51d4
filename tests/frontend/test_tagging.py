"""Every value has a path, and the lowered module says which value is which."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax._src.interpreters import mlir as jax_mlir
from jax.experimental.shard_alike import shard_alike
from jax.sharding import AxisType, PartitionSpec
from jaxlib.mlir import ir

from autoshard.frontend.meshes import read_mesh
from autoshard.frontend.trace import Traced, trace
from autoshard.mlir_modules import name_of
from autoshard.sharding import parse_mesh_sizes

MESH = parse_mesh_sizes("x=2,y=4")
TAG = re.compile(r"T\[(.*)\]/sharding_constraint$")
X = jax.ShapeDtypeStruct((8, 16), jnp.float32)
W = jax.ShapeDtypeStruct((16, 16), jnp.float32)


def traced(fn: Callable[..., Any], *args: Any) -> Traced:
    return trace(fn, args, mesh=MESH)


def tags(program: Traced) -> dict[str, str]:
    """The type of each tagged value in the lowered module, by path; each path tags one value."""
    found: dict[str, str] = {}

    def visit(op: Any) -> None:
        for region in op.regions:
            for block in region.blocks:
                for child in block.operations:
                    if child.operation.name == "sdy.sharding_constraint":
                        tag = TAG.search(name_of(child.operation.location))
                        if tag is not None:
                            assert tag.group(1) not in found
                            found[tag.group(1)] = str(child.operation.results[0].type)
                    visit(child.operation)

    with jax_mlir.make_ir_context(), ir.Location.unknown():
        module = ir.Module.parse(program.module)
        visit(module.operation)
    return found


def text_of(program: Traced) -> str:
    with jax_mlir.make_ir_context(), ir.Location.unknown():
        return str(ir.Module.parse(program.module))


def test_an_output_is_named_by_its_equation_and_position() -> None:
    assert tags(traced(lambda x, w: jnp.tanh(x @ w), X, W)) == {
        "0.0": "tensor<8x16xf32>",
        "1.0": "tensor<8x16xf32>",
    }


def test_scalars_are_not_tagged() -> None:
    assert tags(traced(lambda x: jnp.sum(x) * 2, X)) == {}


def test_a_scan_names_the_values_of_its_body() -> None:
    def fn(x: Any, ws: Any) -> Any:
        return jax.lax.scan(lambda c, w: (jnp.tanh(c @ w), c.sum(1)), x, ws)

    program = traced(fn, X, jax.ShapeDtypeStruct((5, 16, 16), jnp.float32))
    assert tags(program) == {
        "0.0": "tensor<8x16xf32>",
        "0.1": "tensor<5x8xf32>",
        "0.jaxpr/in.0": "tensor<8x16xf32>",
        "0.jaxpr/in.1": "tensor<16x16xf32>",
        "0.jaxpr/0.0": "tensor<8x16xf32>",
        "0.jaxpr/1.0": "tensor<8x16xf32>",
        "0.jaxpr/2.0": "tensor<8xf32>",
    }
    assert program.operand_paths["0"] == ("in.0", "in.1")
    assert program.operand_paths["0.jaxpr/0"] == ("0.jaxpr/in.0", "0.jaxpr/in.1")


def test_branches_are_numbered() -> None:
    def fn(i: Any, x: Any) -> Any:
        return jax.lax.switch(i, [jnp.tanh, lambda x: x * x, lambda x: x + 1], x)

    program = traced(fn, jax.ShapeDtypeStruct((), jnp.int32), X)
    assert set(tags(program)) == {
        "1.0",
        *(f"1.branches[{i}]/{value}" for i in range(3) for value in ("in.0", "0.0")),
    }
    assert program.operand_paths["1.branches[1]/0"] == ("1.branches[1]/in.0",) * 2


def test_while_loops_name_condition_and_body() -> None:
    def fn(x: Any) -> Any:
        return jax.lax.while_loop(lambda c: c.sum() < 9, lambda c: c * 2, x)

    assert set(tags(traced(fn, X))) == {
        "0.0",
        "0.cond_jaxpr/in.0",
        "0.body_jaxpr/in.0",
        "0.body_jaxpr/0.0",
    }


def test_nested_bodies_are_named_from_the_outside_in() -> None:
    def fn(x: Any, ws: Any) -> Any:
        block = jax.checkpoint(jax.jit(lambda c, w: c @ w))
        return jax.lax.scan(lambda c, w: (block(c, w), None), x, ws)[0]

    found = tags(traced(fn, X, jax.ShapeDtypeStruct((5, 16, 16), jnp.float32)))
    assert found["0.jaxpr/0.jaxpr/0.jaxpr/0.0"] == "tensor<8x16xf32>"


def test_two_calls_of_one_jitted_function_have_values_of_their_own() -> None:
    double = jax.jit(lambda x: x * 2)
    found = tags(traced(lambda x: double(double(x)), X))
    assert set(found) == {
        *(f"{call}.{value}" for call in (0, 1) for value in ("0", "jaxpr/in.0", "jaxpr/0.0"))
    }


def test_custom_derivative_calls_are_entered() -> None:
    cube = jax.custom_vjp(lambda x: x * x * x)
    cube.defvjp(lambda x: (cube(x), x), lambda x, g: (3 * x * x * g,))
    found = tags(traced(lambda x: cube(jax.nn.relu(x)), X))
    assert {path.rpartition("/")[2] for path in found} >= {"0.0", "1.0", "in.0"}
    assert any("call_jaxpr" in path for path in found)


def test_the_gradient_inside_a_step_is_named_too() -> None:
    program = traced(jax.grad(lambda w, x: jnp.sum(jnp.tanh(x @ w))), W, X)
    assert set(tags(program)) >= {"0.0", f"{len(program.jaxpr.jaxpr.eqns) - 1}.0"}


def test_values_nobody_reads_are_not_tagged() -> None:
    def fn(x: Any, w: Any) -> Any:
        _ = jnp.sin(x)
        return jax.lax.scan(lambda c, _: (c @ w, c), x, None, length=3)[0]

    assert set(tags(traced(fn, X, W))) == {
        "0.0",
        "0.jaxpr/in.0",
        "0.jaxpr/in.1",
        "0.jaxpr/0.0",
    }


def test_typed_keys_are_left_alone_and_what_they_make_is_tagged() -> None:
    key = jax.eval_shape(lambda: jax.random.key(0))

    def fn(key: Any) -> Any:
        keys = jax.random.split(key, 3)
        return jax.random.normal(keys[1], (8, 16))

    found = tags(traced(fn, key))
    assert found
    assert "tensor<8x16xf32>" in found.values()


def test_literals_and_scalars_have_no_operand_path() -> None:
    assert traced(lambda x: x * 2 + jnp.sum(x), X).operand_paths == {
        "0": ("in.0", None),
        "1": ("in.0",),
        "2": ("0.0", None),
    }


def test_an_array_the_function_closes_over_is_a_constant() -> None:
    table = jnp.ones((16, 4))
    program = traced(lambda x: x @ table, X)
    assert program.operand_paths == {"0": ("in.0", "const.0")}
    assert program.captured_names == ("captured[0]",)
    assert [aval.shape for aval in program.captured_avals] == [(16, 4)]
    assert program.in_names == ("x",)


def test_the_users_own_constraints_stay_as_they_are() -> None:
    def fn(x: Any) -> Any:
        return jax.lax.with_sharding_constraint(x, PartitionSpec("x", None)) * 2

    program = traced(fn, X)
    assert set(tags(program)) == {"0.0", "1.0"}
    text = text_of(program)
    assert text.count('<@mesh, [{"x"}, {}]>') == 1
    assert text.count("<@mesh, [{?}, {?}]>") == 2


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
def test_the_kind_of_mesh_axes_does_not_change_the_paths(axis_type: AxisType) -> None:
    jax_mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(axis_type,) * 2)
    mesh, context, _ = read_mesh(jax_mesh)
    with jax.set_mesh(jax_mesh):
        program = trace(lambda x, w: jnp.tanh(x @ w), (X, W), mesh=mesh, context=context)
    assert set(tags(program)) == {"0.0", "1.0"}
    assert program.fingerprint == traced(lambda x, w: jnp.tanh(x @ w), X, W).fingerprint


def test_shard_map_bodies_are_named() -> None:
    jax_mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)

    scaled = jax.shard_map(
        lambda x: jnp.tanh(x) * jax.lax.psum(x, "x"),
        mesh=jax_mesh,
        in_specs=PartitionSpec("x"),
        out_specs=PartitionSpec("x"),
        axis_names={"x"},
    )
    mesh, context, _ = read_mesh(jax_mesh)
    program = trace(lambda x: scaled(x) + 1, (X,), mesh=mesh, context=context)
    found = tags(program)
    assert found["0.jaxpr/0.0"] == "tensor<4x16xf32>"
    assert found["1.0"] == "tensor<8x16xf32>"


def test_a_shard_map_over_every_axis_of_a_mesh_of_its_own_is_traced_without_context() -> None:
    jax_mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    summed = jax.shard_map(
        lambda x: jax.lax.psum(x, ("x", "y")),
        mesh=jax_mesh,
        in_specs=PartitionSpec("x", "y"),
        out_specs=PartitionSpec(),
    )
    # The text mesh has no device kind, so JAX takes it for another mesh than the user's.
    found = tags(traced(lambda x: summed(x) * 2, X))
    assert found["1.0"] == "tensor<4x4xf32>"


def test_shard_alike_survives() -> None:
    program = traced(lambda x, y: shard_alike(x, y * 2), X, X)
    assert text_of(program).count("sdy.sharding_group") == 2


def test_mutable_references_are_resolved_before_tagging() -> None:
    def fn(x: Any) -> Any:
        total = jax.new_ref(jnp.zeros((8, 16)))
        total[...] += x
        return total[...] * 2

    program = traced(fn, X)
    assert tags(program)
    assert not any("ref" in eqn.primitive.name for eqn in program.jaxpr.jaxpr.eqns)
