"""Bytes through collectives: those of the plan are those of the compiled program."""

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

pytestmark = pytest.mark.usefixtures("compiled_here")

MESH = "a=2,b=4"
X = jax.ShapeDtypeStruct((2048, 2048), np.dtype(np.float32))
MOVES = [
    (P(("a", "b")), P(None, "b")),
    (P(None, ("b", "a")), P("b")),
    (P("a", "b"), P("b", "a")),
]


def verified(fn: Callable[..., Any], *arguments: Any, **options: Any) -> tuple[float, float]:
    """Planned and compiled bytes."""
    plan = autoshard.optimize(
        fn, *arguments, mesh=MESH, hardware="cpu-host", baselines=False, **options
    )
    found = plan.verify("local")
    return found.predicted_bytes, found.compiled_bytes


@pytest.mark.parametrize(("have", "wanted"), MOVES, ids=str)
def test_a_constraint_straight_on_a_pinned_argument_moves_what_is_planned(
    have: P, wanted: P
) -> None:
    """Left to itself the partitioner gathers for a pair of shardings more than a step apart."""

    def fn(x: jax.Array) -> Any:
        return 2.0 * lax.with_sharding_constraint(x, wanted)

    mesh = jax.make_mesh((2, 4), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    with jax.set_mesh(mesh):
        planned, compiled = verified(fn, X, in_shardings=have)
    assert planned == pytest.approx(compiled, rel=0.1)


def test_a_pinned_result_of_a_pinned_argument_moves_what_is_planned() -> None:
    have, wanted = MOVES[0]
    planned, compiled = verified(lambda x: x, X, in_shardings=have, out_shardings=wanted)
    assert planned == pytest.approx(compiled, rel=0.1)


def test_a_use_behind_a_constraint_of_the_program_leaves_other_readers_alone() -> None:
    """Shardy gives the end of a chain of constraints to all that reads its start later."""

    def fn(x: jax.Array) -> Any:
        made = jnp.minimum(x, 2 * x)
        held = lax.with_sharding_constraint(made, P())
        return lax.dot_general(held, made, (((0,), (0,)), ((), ()))), made

    mesh = jax.make_mesh((2, 4), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    with jax.set_mesh(mesh):
        planned, compiled = verified(fn, jax.ShapeDtypeStruct((3, 8, 4, 4), "f4"), in_shardings=P())
    assert planned == compiled


def test_a_loop_reads_one_value_under_two_names_as_it_is_held_for_both() -> None:
    """Shardy makes one of equal values that a loop reads unchanged, and shards it once."""

    def fn(x: jax.Array) -> Any:
        return jnp.searchsorted(x, x)

    out = P(("a", "b"))
    for given, moved in ((P(), 0), (out, 768 * 4)):
        asked = {"in_shardings": given, "out_shardings": out}
        planned, compiled = verified(fn, jax.ShapeDtypeStruct((768,), "f4"), **asked)
        assert planned == compiled == moved


def test_what_a_matmul_converts_itself_is_cut_as_it_sums_that() -> None:
    def fn(x: jax.Array, y: jax.Array) -> Any:
        kept = jnp.sin(y)
        made = lax.dot_general(x, kept, (((0,), (1,)), ((), ())), preferred_element_type="f4")
        return made, kept

    x, y = jax.ShapeDtypeStruct((240, 650), "bfloat16"), jax.ShapeDtypeStruct((5, 240), "f4")
    asked = {"in_shardings": (P("b"), P()), "out_shardings": (P(), P())}
    planned, compiled = verified(fn, x, y, **asked)
    assert planned == compiled == 650 * 5 * 4


def test_all_copies_of_an_unrolled_body_compute_where_the_plan_says() -> None:
    """Propagation may shard the copies otherwise, from what they are stacked into."""

    def fn(x: jax.Array) -> Any:
        def body(carry: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
            made = jnp.tanh(carry + jnp.mean(carry))
            return made, made

        return lax.scan(body, x, None, 7, unroll=2)[1]

    asked = {"in_shardings": P(), "out_shardings": P(None, ("a", "b"))}
    planned, compiled = verified(fn, jax.ShapeDtypeStruct((8, 64), "f4"), **asked)
    assert planned == compiled == 0


def test_all_copies_of_an_unrolled_body_read_what_they_sum_alike() -> None:
    """A sum of all elements has no sharding that could hold its copies."""

    def fn(x: jax.Array, rows: jax.Array) -> Any:
        def body(carry: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
            kept = lax.with_sharding_constraint(row, P(("a", "b")))
            return jnp.tanh(carry + jnp.mean(jnp.tanh(~kept))), carry

        return lax.scan(body, x, rows, unroll=2)[0]

    mesh = jax.make_mesh((2, 4), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    rows = jax.ShapeDtypeStruct((3, 192), np.dtype(np.int32))
    with jax.set_mesh(mesh):
        planned, compiled = verified(fn, jax.ShapeDtypeStruct((3, 8), "f4"), rows)
    assert planned == compiled > 0


def test_the_gradient_of_a_pool_without_windows_needs_nothing() -> None:
    def pooled(x: jax.Array) -> Any:
        return jnp.sum(lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (2, 2), "VALID"))

    wide = jax.ShapeDtypeStruct((64, 1), np.dtype(np.float32))
    asked = {"in_shardings": P(("a", "b")), "out_shardings": P()}
    planned, compiled = verified(jax.grad(pooled), wide, **asked)
    assert planned == compiled == 0


def test_what_a_loop_carries_for_itself_alone_is_not_paid_for() -> None:
    """Compilers drop such a carry, and the product that makes its next value."""

    def fn(x: jax.Array, w: jax.Array, count: jax.Array) -> Any:
        def body(_: Any, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            return jnp.sin(carry[0]), carry[1] + carry[0] @ w

        return lax.fori_loop(0, count, body, (x, x))[0]

    count = jax.ShapeDtypeStruct((), np.dtype(np.int32))
    planned, compiled = verified(
        fn, X, X, count, in_shardings=(P("b"), P("b"), None), out_shardings=P("b")
    )
    assert planned == compiled == 0


def halved(x: jax.Array) -> jax.Array:
    """Divided by two until small."""

    def body(state: tuple[Any, jax.Array]) -> tuple[Any, jax.Array]:
        return state[0] + 1, lax.cond(
            state[0] % 2 == 0, lambda x: lax.with_sharding_constraint(x / 2, P()), jnp.sin, state[1]
        )

    made: jax.Array = lax.while_loop(lambda s: (s[0] < 3) & (s[1].max() > 1), body, (0, x))[1]
    return made


def test_a_loop_that_an_unrolled_body_runs_for_nobody_is_not_paid_for() -> None:
    """The carry of the first half is read by nobody: so is its loop, with the constraint in it."""

    def fn(x: jax.Array, rows: jax.Array) -> Any:
        def body(_: jax.Array, row: jax.Array) -> tuple[jax.Array, None]:
            return halved(lax.with_sharding_constraint(row, P("a"))), None

        return lax.scan(body, x, rows, unroll=2)[0]

    rows = jax.ShapeDtypeStruct((4, 1024, 64), np.dtype(np.float32))
    mesh = jax.make_mesh((2, 4), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    with jax.set_mesh(mesh):
        planned, compiled = verified(
            fn, rows.update(shape=(1024, 64)), rows, out_shardings=P(), default_trip_count=1.0
        )
    assert planned == compiled > 0


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_an_operand_of_another_type_is_gathered_before_it_is_converted(dtype: str) -> None:
    x = jax.ShapeDtypeStruct((256, 128), jnp.dtype(dtype))
    w = jax.ShapeDtypeStruct((128, 512), np.dtype(np.float32))

    def product(x: jax.Array, w: jax.Array) -> Any:
        return lax.dot_general(x, w, (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32)

    columns = P(None, ("a", "b"))
    planned, compiled = verified(
        product, x, w, in_shardings=(P(None, "b"), columns), out_shardings=columns
    )
    assert planned == compiled > 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn", "int4", "int8"])
def test_arguments_and_results_are_sent_as_wide_as_the_compiler_sends_them(dtype: str) -> None:
    """XLA on CPUs sends bfloat16 as float32, 8-bit floats as float16, 4-bit integers as bytes."""
    x = jax.ShapeDtypeStruct((1024, 64), jnp.dtype(dtype))

    def summed(x: jax.Array) -> Any:
        return lax.reduce(x, jnp.zeros((), x.dtype), lax.max, (0,)), x

    planned, compiled = verified(summed, x, in_shardings=P("a"), out_shardings=(P(), P(None, "a")))
    assert planned == compiled > 0


TWICE: dict[str, Callable[[Any], Any]] = {
    "as it is": lambda made: (made, made),
    "behind a barrier": lambda made: (jax.lax.optimization_barrier(made), made),
    "reshaped": lambda made: (made.reshape(-1), made),
}


@pytest.mark.parametrize("form", TWICE)
def test_a_value_returned_twice_takes_two_buffers(form: str) -> None:
    """One was planned: a third less than compiled in a program of a soak, within a budget."""
    x = jnp.ones((64, 64))
    plan = autoshard.optimize(
        lambda x: TWICE[form](jnp.sin(x)), x, mesh="a=8", hardware="cpu-host", baselines=False
    )
    placed = jax.device_put(x, plan.in_shardings[0])
    found = plan.jit().lower(placed).compile().memory_analysis()
    compiled = found.argument_size_in_bytes + found.output_size_in_bytes + found.temp_size_in_bytes
    assert plan.data.memory.peak_bytes == pytest.approx(compiled, rel=0.1)


def test_the_way_to_a_use_that_is_asked_for_leaves_the_other_operands_alone() -> None:
    def fn(x: jax.Array, y: jax.Array) -> Any:
        return jnp.where(y > 0, x, 1.0)

    planned, compiled = verified(
        fn,
        X,
        X,
        in_shardings=(P("b"), P("a", "b")),
        out_shardings=P("a", "b"),
        constraints=[autoshard.Uses("x", P("a", "b"))],
    )
    assert planned == compiled


def test_a_loop_carries_as_planned_what_it_is_asked_to_read_otherwise() -> None:
    def fn(x: jax.Array, y: jax.Array) -> Any:
        return lax.fori_loop(0, 3, lambda _, carry: jnp.cumsum(carry, 0) * 0.5, x), y

    small = jax.ShapeDtypeStruct((24, 13), np.dtype(np.float32))
    planned, compiled = verified(
        fn, small, small, in_shardings=P(), constraints=[autoshard.Uses("x", P("b"))]
    )
    assert planned == compiled == 24 * 13 * 4


def test_calls_that_read_a_value_several_times_share_its_move() -> None:
    """`jnp.roll` reads it twice, in a body of its own for each shift."""

    def fn(x: jax.Array) -> Any:
        return sum(jnp.roll(x, shift, 1) for shift in (-1, 1, 2))

    planned, compiled = verified(fn, X, in_shardings=P(None, "b"), out_shardings=P(("b", "a")))
    assert planned == compiled


def test_every_read_of_a_value_that_an_op_takes_several_times_is_moved_as_planned() -> None:
    def fn(x: jax.Array) -> Any:
        return jnp.stack([x] * 8)

    planned, compiled = verified(
        fn, X, in_shardings=P("a", "b"), out_shardings=P(("a", "b")), memory_budget=10**9
    )
    assert planned == compiled


def test_the_loops_of_both_passes_share_the_move_of_what_they_read() -> None:
    def loss(weights: jax.Array, x: jax.Array) -> Any:
        return lax.scan(lambda carry, w: (jnp.tanh(carry @ w), None), x, weights)[0].sum()

    weights = jax.ShapeDtypeStruct((4, 64, 64), np.dtype(np.float32))
    x = jax.ShapeDtypeStruct((8, 64), np.dtype(np.float32))
    planned, compiled = verified(
        jax.grad(jax.jit(loss), argnums=1),
        weights,
        x,
        in_shardings=(P("b", None, "a"), P(("a", "b"))),
        out_shardings=P(("a", "b")),
    )
    assert planned == compiled


def test_calls_in_a_branch_share_the_move_of_what_they_read() -> None:
    def fn(x: jax.Array, is_first: jax.Array) -> Any:
        def rolled() -> Any:
            return jnp.roll(x, 1, 1) + jnp.roll(x, 2, 1)

        return lax.cond(is_first, rolled, lambda: x * 2.0)

    planned, compiled = verified(
        fn,
        X,
        jax.ShapeDtypeStruct((), np.dtype(np.bool_)),
        in_shardings=(P(None, "b"), None),
        out_shardings=P(("b", "a")),
    )
    assert planned == compiled


def recurrent_gradient(params: Any, inputs: jax.Array, *, unroll: int) -> Any:
    def cell(h: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        gate = jax.nn.sigmoid(jnp.concatenate([h, x], -1) @ params["gate"])
        new = jnp.tanh(jnp.concatenate([h * gate, x], -1) @ params["new"])
        h = (1 - gate) * h + gate * new
        return h, h

    return jnp.mean(lax.scan(cell, jnp.zeros((16, 32)), inputs, unroll=unroll)[1] ** 2)


@pytest.mark.parametrize("unroll", [2, 3])
def test_constraints_stand_in_every_copy_of_an_unrolled_body(unroll: int) -> None:
    """Without those of the others, shardings seemed to spread that do not (jaxlib 0.10.2)."""

    def step(params: Any, inputs: jax.Array) -> Any:
        gradient = jax.grad(recurrent_gradient)(params, inputs, unroll=unroll)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient)

    weights = jax.ShapeDtypeStruct((48, 32), np.float32)
    inputs = jax.ShapeDtypeStruct((12, 16, 16), np.float32)
    planned, compiled = verified(step, {"gate": weights, "new": weights}, inputs, donate_argnums=0)
    assert planned == compiled > 0


@pytest.mark.parametrize("cut", [P(None, "b"), P(None, ("a", "b")), P("a", "b")], ids=str)
def test_partial_results_of_an_argmax_are_gathered_as_planned(cut: P) -> None:
    """A value and its place are reduced together, for which there is no all-reduce."""
    wide = jax.ShapeDtypeStruct((8, 1 << 20), np.dtype(np.float32))
    planned, compiled = verified(lambda x: jnp.argmax(x, 1), wide, in_shardings=cut)
    assert planned == compiled
    assert 0 < planned < 4096


def test_what_jax_lowers_otherwise_for_cpus_is_planned_as_it_runs_there() -> None:
    """On TPUs a singular value decomposition is a loop that asks all devices whether it is done."""
    batch = jax.ShapeDtypeStruct((8, 16, 16), np.dtype(np.float32))
    planned, compiled = verified(
        lambda x: jnp.linalg.svd(x, compute_uv=False), batch, in_shardings=P(("a", "b"))
    )
    assert planned == compiled == 0


@pytest.mark.parametrize("wanted", [P(), P("b", "a"), P(None, "a")], ids=str)
def test_what_one_constant_fills_is_sent_nowhere(wanted: P) -> None:
    """XLA folds an all-gather of such a value, and on host CPUs neither of the other moves."""

    def fn(x: jax.Array) -> Any:
        kept = lax.with_sharding_constraint(jnp.full_like(x, 2.0), P("a", "b"))
        return lax.with_sharding_constraint(jnp.sin(kept), wanted) * x

    mesh = jax.make_mesh((2, 4), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    with jax.set_mesh(mesh):
        planned, compiled = verified(fn, X, in_shardings=wanted, out_shardings=wanted)
    assert planned == compiled == 0


def test_what_one_constant_fills_changes_dimensions_by_way_of_all_of_it() -> None:
    def fn(x: jax.Array) -> Any:
        return lax.with_sharding_constraint(jnp.full_like(x, 2.0), P("b"))

    mesh = jax.make_mesh((2, 4), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    with jax.set_mesh(mesh):
        planned, compiled = verified(fn, X, out_shardings=P(None, "b"))
    assert planned == compiled == 0


@pytest.mark.parametrize("num_rows", [8, 16])
def test_a_shard_of_one_element_is_sent_whatever_it_is(num_rows: int) -> None:
    """XLA folds a gather of a broadcast, and one element is none."""
    mesh = jax.make_mesh((2, 4), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)

    def fn(x: jax.Array) -> Any:
        made = lax.with_sharding_constraint(jnp.zeros_like(x), P(("a", "b")))
        return lax.fori_loop(0, 3, lambda _, y: jnp.sort(y) + jnp.cumsum(x), made)

    rows = jax.ShapeDtypeStruct((num_rows,), np.dtype(np.float32))
    with jax.set_mesh(mesh):
        planned, compiled = verified(fn, rows, in_shardings=P(), out_shardings=P())
    assert planned == compiled
    assert (compiled > 0) == (num_rows == 8)


def test_collectives_of_what_one_constant_fills_are_folded() -> None:
    mesh = jax.make_mesh((2, 4), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)

    def fn(x: jax.Array) -> Any:
        def body(piece: jax.Array) -> Any:
            return lax.psum(lax.all_gather(piece, "b", tiled=True), "b")

        mapped = jax.shard_map(body, mesh=mesh, in_specs=P("b"), out_specs=P(), check_vma=False)
        return mapped(jnp.zeros_like(x)) + x

    planned, compiled = verified(fn, X, in_shardings=P("b"), out_shardings=P("b"))
    assert planned == compiled == 0


def test_a_branch_is_given_what_one_constant_fills() -> None:
    def fn(x: jax.Array, is_first: jax.Array) -> Any:
        made = lax.with_sharding_constraint(jnp.full_like(x, 2.0), P("b"))
        wanted = lambda y: lax.with_sharding_constraint(jnp.sin(y), P()) * 2.0  # noqa: E731
        return lax.cond(is_first, wanted, jnp.cos, made)

    mesh = jax.make_mesh((2, 4), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    flag = jax.ShapeDtypeStruct((), np.dtype(np.bool_))
    with jax.set_mesh(mesh):
        planned, compiled = verified(fn, X, flag, out_shardings=P("b"))
    assert planned == compiled


def test_a_branch_that_is_always_taken_shares_moves_with_what_is_around() -> None:
    def fn(x: jax.Array) -> Any:
        return lax.switch(1, [jnp.sin, jnp.tanh, jnp.cos], x), jnp.cumsum(x, 2)

    small = jax.ShapeDtypeStruct((8, 1, 16), np.dtype(np.float32))
    planned, compiled = verified(fn, small, in_shardings=P(None, None, "b"), out_shardings=P())
    assert planned == compiled == 8 * 16 * 4


def test_a_loop_that_hands_on_what_it_is_given_is_not_paid_for() -> None:
    def fn(x: jax.Array) -> Any:
        def body(_: Any, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            kept = lax.with_sharding_constraint(carry[0], P("b"))
            return kept, carry[1] + jnp.sum(carry[0])

        count = (jnp.sum(x) > 0).astype(jnp.int32) + 1
        return lax.fori_loop(0, count, body, (x, jnp.zeros(())))[0]

    mesh = jax.make_mesh((2, 4), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    with jax.set_mesh(mesh):
        planned, compiled = verified(fn, X, in_shardings=P("b"), out_shardings=P("b"))
    assert planned == compiled == 0


def test_what_is_made_of_several_constants_is_sent() -> None:
    def fn(x: jax.Array) -> Any:
        rows = lax.with_sharding_constraint(lax.broadcasted_iota(x.dtype, x.shape, 0), P("a"))
        return lax.with_sharding_constraint(rows, P()) * x

    mesh = jax.make_mesh((2, 4), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    with jax.set_mesh(mesh):
        planned, compiled = verified(fn, X, in_shardings=P(), out_shardings=P())
    assert planned == compiled > 0
