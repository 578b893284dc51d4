"""Operands inside one equation, where no constraint can stand before, are read where they are."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import autoshard
from autoshard.encoding.left_in_place import is_left_in_place, is_within_equation
from autoshard.graph.program import OpClass
from tests.planner.graphs import plan
from tests.planner.traced import exported

STACK = jax.ShapeDtypeStruct((64, 4, 256), jnp.float32)


@pytest.mark.parametrize("hardware", ["cpu-host", "h100", "tpu-v5e"])
def test_a_piece_of_a_stack_is_moved_after_its_reshape(hardware: str) -> None:
    def first(stack: jax.Array) -> Any:
        return jnp.unstack(stack, axis=1)[0]

    asked = {"in_shardings": P(None, None, "x"), "out_shardings": P("x")}
    graph, wishes = exported(first, STACK, mesh="x=4", **asked)
    solution = plan(graph, "x=4", wishes, None, hardware)
    decoded = solution.decoded
    for op in graph.ops:
        if op.name == "reshape":
            (value,) = op.operands
            assert decoded.candidates[op.index].operands == (decoded.layouts[value],)
    (moved,) = solution.account.collectives
    assert moved.bytes_per_device == 64 * 256 * 4 // 4


@pytest.mark.parametrize("hardware", ["cpu-host", "h100", "tpu-v5e"])
def test_what_a_run_takes_of_a_stack_is_moved_after_its_reshape(hardware: str) -> None:
    """Compilers moved the whole stack in every run (states of layers kept for a backward pass)."""

    def fn(stack: jax.Array, x: jax.Array) -> Any:
        return jax.lax.scan(lambda x, row: (jnp.sort(x + row, 0), None), x, stack)[0]

    asked = {"in_shardings": (P(None, "x"), P(None, "x")), "out_shardings": P(None, "x")}
    stack, x = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((8, 64, 64), (64, 64)))
    graph, wishes = exported(fn, stack, x, mesh="x=4", **asked)
    solution = plan(graph, "x=4", wishes, None, hardware)
    (piece,) = (op for op in graph.ops if op.name == "dynamic_slice")
    (reshape,) = (graph.ops[index] for index in graph.consumers[piece.results[0]])
    decoded = solution.decoded
    assert reshape.name == "reshape"
    assert is_within_equation(graph, reshape, 0)
    assert decoded.candidates[reshape.index].operands == (decoded.layouts[piece.results[0]],)
    (moved,) = solution.account.collectives
    assert moved.kind == "all-to-all"


def test_the_test_of_a_loop_in_one_equation_reduces_what_the_loop_carries_as_it_is_sharded() -> (
    None
):
    shape = jax.ShapeDtypeStruct((16, 8, 64), jnp.float32)
    asked = {"in_shardings": P(None, None, "x"), "out_shardings": P(None, None, "x")}
    graph, wishes = exported(lambda x: jax.lax.igamma(x, x + 1), shape, mesh="x=8", **asked)
    solution = plan(graph, "x=8", wishes, None, "cpu-host")
    decoded = solution.decoded
    reductions = [op for op in graph.ops if op.op_class is OpClass.REDUCE]
    assert reductions
    moved_for_several = {index for read in solution.encoded.reads for index, _ in read.reads}
    assert moved_for_several.isdisjoint(op.index for op in reductions)
    for op in reductions:
        assert decoded.candidates[op.index].operands[0] == decoded.layouts[op.operands[0]]


def test_a_loop_moves_what_all_runs_read_alike_as_it_begins_however_tight_memory_is() -> None:
    """Moved in the body, compilers would move it before the loop."""

    def fn(x: jax.Array, rows: jax.Array) -> Any:
        def body(_: int, state: jax.Array) -> Any:
            both = jnp.sort(jnp.concatenate([rows, state]), 0)
            return jnp.tanh(state + jnp.sum(both))

        return jax.lax.fori_loop(0, 5, body, x)

    x, rows = (jax.ShapeDtypeStruct((size, 512), jnp.float32) for size in (8, 512))
    given: dict[str, Any] = {"mesh": "x=8", "hardware": "cpu-host", "in_shardings": (P(), P("x"))}
    peak = autoshard.optimize(fn, x, rows, **given).data.memory.peak_bytes
    tight = autoshard.optimize(fn, x, rows, memory_budget=int(0.9 * peak), **given)
    moved = [one for one in tight.data.collectives if one.kind == "all-to-all"]
    assert [one.count for one in moved] == [1.0]


def test_a_ragged_matmul_sums_the_rows_that_it_masks_as_they_are_sharded() -> None:
    def fn(rows: jax.Array) -> Any:
        return jax.lax.ragged_dot(rows, jnp.ones((2, 24, 4)), jnp.array([1, 2], jnp.int32))

    rows = jax.ShapeDtypeStruct((3, 24), jnp.float32)
    graph, _ = exported(fn, rows, mesh="x=8", platform="cpu")
    (matmul,) = (op for op in graph.ops if op.op_class is OpClass.MATMUL)
    assert is_left_in_place(graph, matmul, 0)


def test_a_ragged_matmul_sums_masked_columns_where_they_are_cut() -> None:
    """Nothing can gather the rows between their mask and the matmul: the equation has both."""
    mesh = jax.make_mesh((2, 2, 2), ("x", "y", "z"), axis_types=(jax.sharding.AxisType.Auto,) * 3)
    columns = jax.sharding.NamedSharding(mesh, P(None, ("y", "x", "z")))

    def fn(rows: jax.Array) -> Any:
        held = jax.lax.with_sharding_constraint(rows, columns)
        made = jax.lax.ragged_dot(held, jnp.ones((2, 8, 4)), jnp.array([1, 7], jnp.int32))
        return jnp.tanh(rows + jnp.mean(jnp.tanh(made)))

    rows = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    solution = autoshard.optimize(
        lambda x: jax.jvp(fn, (x,), (x,))[1], rows, mesh=mesh, hardware="cpu-host", baselines=False
    ).solution
    assert solution is not None
    decoded = solution.decoded
    for op in solution.graph.ops:
        if op.op_class is OpClass.MATMUL:
            masked = op.operands[0]
            assert decoded.candidates[op.index].operands[0] == decoded.layouts[masked]


@pytest.mark.parametrize("length", [2, 8])
def test_what_the_runs_of_an_unrolled_loop_make_is_stacked_where_it_is(length: int) -> None:
    def fn(x: jax.Array) -> Any:
        def body(carry: jax.Array, _: None) -> Any:
            made = jnp.tanh(carry)
            return made, made

        return jax.lax.scan(body, x, None, length=length, unroll=2)[1]

    graph, _ = exported(fn, jax.ShapeDtypeStruct((4, 8), jnp.float32), mesh="x=4", platform="cpu")
    (result,) = graph.results
    joined = graph.maker(result.operands[0])
    assert joined.name == ("concatenate" if length == 2 else "reshape")
    assert is_left_in_place(graph, joined, len(joined.operands) - 1)


def test_rows_looked_up_are_filled_where_out_of_bounds_as_they_are_sharded() -> None:
    """XLA chooses its own way where an equation looks up a row and selects, moves between."""

    def fn(rows: jax.Array) -> Any:
        row = rows.at[3].get(mode="fill", fill_value=0)
        return jnp.sort(row, 0), jnp.sort(row, 1), row

    rows = jax.ShapeDtypeStruct((8, 8, 24), jnp.float32)
    asked = {"in_shardings": P(None, "y", "x"), "out_shardings": (P(), P(), P())}
    graph, wishes = exported(fn, rows, mesh="x=2,y=4", **asked)
    decoded = plan(graph, "x=2,y=4", wishes, None, "cpu-host").decoded
    (look_up,) = (op for op in graph.ops if op.op_class is OpClass.GATHER)
    (select,) = (op for op in graph.ops if look_up.results[0] in op.operands)
    assert select.name == "select"
    place = select.operands.index(look_up.results[0])
    assert is_within_equation(graph, select, place)
    assert decoded.candidates[select.index].operands[place] == decoded.layouts[look_up.results[0]]
