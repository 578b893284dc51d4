"""Loops and conditionals under a plan, as XLA compiles them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import autoshard
from autoshard.hlo.compiled import compare_collectives, read_compiled
from tests.apply.loop_programs import by_while, summed

pytestmark = pytest.mark.usefixtures("compiled_here")

MESH = "data=2,model=4"
SQUARE = jax.ShapeDtypeStruct((256, 256), np.dtype(np.float32))
INDEX = jax.ShapeDtypeStruct((), np.dtype(np.int32))
STACK = jax.ShapeDtypeStruct((8, 256, 256), np.dtype(np.float32))

BRANCHES: list[Callable[..., Any]] = [
    lambda x, w: x @ w,
    lambda x, _: x * 2,
    lambda x, _: x.T,
]


def chosen(index: Any, x: Any, w: Any) -> Any:
    return lax.switch(index, BRANCHES, x, w)


def chosen_and_used(index: Any, x: Any, w: Any) -> Any:
    return jnp.tanh(chosen(index, x, w)) @ w


@pytest.mark.parametrize("fn", [chosen, chosen_and_used])
def test_branches_that_end_in_different_shardings_compile_to_the_collectives_listed(
    fn: Callable[..., Any],
) -> None:
    # XLA refuses a conditional whose branches end in different shardings.
    pinned = (P(), P(None, "data"), P("model", None))
    plan = autoshard.optimize(
        fn, INDEX, SQUARE, SQUARE, mesh=MESH, hardware="cpu-host", in_shardings=pinned
    )
    compiled = plan.jit().lower(INDEX, SQUARE, SQUARE).compile()
    found = compare_collectives(
        plan.data.collectives, read_compiled(compiled, plan.data.mesh).collectives
    )
    assert abs(found.difference_percent) < 10
    draw = np.random.default_rng(0)
    x, w = (jnp.asarray(draw.standard_normal((256, 256)), jnp.float32) for _ in range(2))
    for index in range(len(BRANCHES)):
        ours = plan.jit()(np.int32(index), x, w)
        np.testing.assert_allclose(ours, fn(index, x, w), rtol=1e-3, atol=1e-4)


def handed_on(x: Any) -> Any:
    def other(x: Any) -> Any:
        return jnp.tanh(x + jnp.tanh(x @ x.T).mean())

    return jax.nn.relu(lax.cond(x.sum() > 0, lambda x: x, other, x))


def of_invariants(x: Any, w: Any) -> Any:
    return lax.scan(lambda c, _: (jnp.tanh(c + jnp.tanh(w).mean()), None), x, None, length=5)[0]


def carried_and_stacked(x: Any) -> Any:
    def body(carry: Any, row: Any) -> Any:
        return jnp.tanh(carry + jnp.tanh((row * row).sum(1)).mean()), None

    return lax.scan(body, x, x)[0]


def carried_and_stacked_twice(x: Any) -> Any:
    def body(carry: Any, row: Any) -> Any:
        return (jnp.tanh(carry + jnp.tanh(row[0]).mean()),) * 2

    return lax.scan(body, x, x, unroll=2)[1]


def gathered_in_a_branch(x: Any) -> Any:
    branches = [jnp.sin, jnp.cos, jnp.tanh, jnp.abs, lambda x: jnp.sort(x, 0)]
    return lax.fori_loop(0, 2, lambda i, carry: lax.switch(i, branches, carry), x)


def array(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, np.dtype(np.float32))


@pytest.mark.parametrize(
    ("fn", "args", "pinned", "result"),
    [
        (handed_on, (array(24, 5),), (P(("data", "model")),), P()),
        (gathered_in_a_branch, (array(80000, 5),), (P(("data", "model")),), P(("data", "model"))),
        (of_invariants, (array(8, 8), array(2048, 2048)), (P("data"), P("model")), P("data")),
        (carried_and_stacked, (array(7, 16, 13),), (P(),), P(None, ("data", "model"))),
        (carried_and_stacked_twice, (array(24, 2, 4),), (P("data"),), P()),
    ],
)
def test_what_branches_and_loops_move_is_moved_as_often_as_planned(
    fn: Callable[..., Any], args: tuple[Any, ...], pinned: tuple[P, ...] | None, result: P | None
) -> None:
    plan = autoshard.optimize(
        fn, *args, mesh=MESH, hardware="cpu-host", in_shardings=pinned, out_shardings=result
    )
    compiled = plan.jit().lower(*args).compile()
    found = compare_collectives(
        plan.data.collectives, read_compiled(compiled, plan.data.mesh).collectives
    )
    assert found.predicted_bytes == found.compiled_bytes


def last_of_scan(weights: Any, x: Any) -> Any:
    return jnp.sum(lax.scan(lambda c, w: (jnp.tanh(c @ w), None), x, weights)[0])


def test_the_gradient_of_a_scan_that_moves_what_it_only_reads_runs_as_unsharded() -> None:
    # Such operands are read inside the loop alone, by ops that have no equation of their own.
    step = jax.grad(last_of_scan)
    plan = autoshard.optimize(step, STACK, SQUARE, mesh=MESH, hardware="cpu-host")
    assert any("<" in path for path in plan.data.wanted_uses)
    assert set(plan.data.wanted_uses) <= set(plan.constraints)
    draw = np.random.default_rng(0)
    weights = jnp.asarray(0.05 * draw.standard_normal(STACK.shape), jnp.float32)
    x = jnp.asarray(draw.standard_normal(SQUARE.shape), jnp.float32)
    np.testing.assert_allclose(plan.jit()(weights, x), step(weights, x), rtol=1e-3, atol=1e-4)


def by_scan(weights: Any, x: Any) -> Any:
    return lax.scan(lambda carry, _: (summed(weights, carry),) * 2, x, None, length=8)


def carried_twice(weights: Any, x: Any) -> Any:
    def body(_: Any, carry: Any) -> Any:
        return (summed(weights, carry[0]),) * 2  # the second is never read, and so not gathered

    return lax.fori_loop(0, 8, body, (x, x))


def layers(stack: Any, x: Any) -> Any:
    return lax.scan(lambda carry, w: (jnp.tanh(carry @ w), None), x, stack)[0]


VECTOR = jax.ShapeDtypeStruct((256,), np.dtype(np.float32))


@pytest.mark.parametrize(
    ("fn", "args", "pinned"),
    [
        (by_scan, (SQUARE, VECTOR), (P("data"), P())),
        (by_while, (SQUARE, VECTOR), (P("model"), P("data"))),
        (carried_twice, (SQUARE, VECTOR), (P("data"), P())),
        (layers, (STACK, SQUARE), (P(None, None, "model"), P("data"))),
    ],
)
def test_what_goes_round_a_loop_is_carried_as_planned(
    fn: Callable[..., Any], args: tuple[Any, ...], pinned: tuple[P, ...]
) -> None:
    # Left to itself XLA carries it as the body makes it, and gathers it once more after the loop.
    plan = autoshard.optimize(fn, *args, mesh=MESH, hardware="cpu-host", in_shardings=pinned)
    assert sum("/out<" in path for path in plan.constraints) == 1
    compiled = plan.jit().lower(*args).compile()
    found = compare_collectives(
        plan.data.collectives, read_compiled(compiled, plan.data.mesh).collectives
    )
    assert found.predicted_bytes == found.compiled_bytes > 0
    draw = np.random.default_rng(0)
    values = [jnp.asarray(draw.standard_normal(a.shape) / 16, jnp.float32) for a in args]
    for ours, theirs in zip(
        jax.tree.leaves(plan.jit()(*values)), jax.tree.leaves(fn(*values)), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)


def test_what_a_hoisted_op_reads_twice_is_gathered_once_before_it() -> None:
    def f(x: Any, table: Any) -> Any:
        def body(carry: Any, _: Any) -> Any:
            twice = jnp.concatenate([table, table], 1)
            return jnp.tanh(carry + jnp.mean(jnp.tanh(jnp.concatenate([twice, twice], 3)))), None

        return jax.lax.scan(body, x, None, length=3)[0]

    shapes = jax.ShapeDtypeStruct((8, 8), jnp.float32), jax.ShapeDtypeStruct((8, 16, 8, 2), "f4")
    plan = autoshard.optimize(
        f,
        *shapes,
        mesh="b=8",
        hardware="cpu-host",
        in_shardings=(P(), P(None, "b")),
        out_shardings=P(),
        baselines=False,
    )
    found = plan.verify()
    assert found.bytes_difference == pytest.approx(0.0, abs=0.01)


def test_what_a_body_constrains_alike_in_every_run_is_moved_for_it_once() -> None:
    def f(x: Any, table: Any) -> Any:
        def body(carry: Any, _: Any) -> Any:
            held = jax.lax.with_sharding_constraint(table, P("b"))
            both = jnp.concatenate([held, carry], 1)
            return jnp.tanh(carry + jnp.mean(jnp.tanh(both))), None

        return jax.lax.scan(body, x, None, length=3)[0]

    shapes = jax.ShapeDtypeStruct((8, 3), jnp.float32), jax.ShapeDtypeStruct((8, 5), jnp.float32)
    mesh = jax.make_mesh((8,), ("b",), axis_types=(jax.sharding.AxisType.Auto,))
    with jax.set_mesh(mesh):
        plan = autoshard.optimize(
            f,
            *shapes,
            mesh=mesh,
            hardware="cpu-host",
            in_shardings=(P(), P()),
            out_shardings=P(),
            baselines=False,
        )
        found = plan.verify()
    assert found.predicted_bytes == found.compiled_bytes


def test_what_an_unrolled_loop_stacks_is_moved_after_the_runs_are_one_dimension() -> None:
    # There is no place for a constraint between the stack that the loop carries and its result.
    def f(x: Any, rows: Any) -> Any:
        def body(carry: Any, row: Any) -> Any:
            return jnp.tanh(carry + jnp.mean(row)), carry

        return jax.lax.scan(body, x, rows, unroll=2)[1]

    shapes = jax.ShapeDtypeStruct((16, 16), jnp.float32), jax.ShapeDtypeStruct((8, 7), "f4")
    plan = autoshard.optimize(
        f,
        *shapes,
        mesh="a=2,b=4",
        hardware="cpu-host",
        in_shardings=(P("a", "b"), P()),
        out_shardings=P(("b", "a")),
        baselines=False,
    )
    found = plan.verify()
    assert found.predicted_bytes == found.compiled_bytes > 0


def test_copies_of_an_unrolled_body_gather_two_dimensions_of_one_value_once() -> None:
    # Steps that are asked for one by one are taken for each of the copies.
    def f(x: Any, table: Any) -> Any:
        def body(carry: Any, _: Any) -> Any:
            grown = jnp.einsum("abc,cde->abde", table, table)
            return jnp.tanh(carry + jnp.mean(jnp.tanh(grown))), None

        return jax.lax.scan(jax.checkpoint(body), x, None, length=4, unroll=2)[0]

    shapes = jax.ShapeDtypeStruct((2, 2), jnp.float32), jax.ShapeDtypeStruct((4, 3, 4), "f4")
    plan = autoshard.optimize(
        f,
        *shapes,
        mesh="a=4,b=2",
        hardware="cpu-host",
        in_shardings=(P(), P("a", None, "b")),
        out_shardings=P(),
        baselines=False,
    )
    found = plan.verify()
    assert found.predicted_bytes == found.compiled_bytes > 0


def test_a_constant_that_a_hoisted_op_and_the_condition_read_is_there_for_both() -> None:
    def f(x: Any) -> Any:
        def body(carry: Any) -> Any:
            count, value = carry
            ends = value.at[jnp.array([0, 3])].set(0)  # indices below 0 count from 8
            return count + 1, jnp.tanh(value + jnp.mean(ends))

        return lax.while_loop(lambda carry: carry[0] < 8, body, (0, x))[1]

    x = np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8)
    plan = autoshard.optimize(f, x, mesh="data=2,model=4", hardware="cpu-host", baselines=False)
    np.testing.assert_allclose(plan.jit()(x), f(x), rtol=1e-6)
