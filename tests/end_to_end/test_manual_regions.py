"""shard_map regions: what the user sends is priced, what goes in and out moves, free axes cut."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import autoshard
from autoshard.errors import ExportError
from autoshard.export import verify_module
from autoshard.hlo.compiled import compare_collectives, read_compiled
from autoshard.plan import Plan

DEVICES = np.array(jax.devices())
MESH = Mesh(DEVICES.reshape(2, 4), ("x", "y"))
CUBE = Mesh(DEVICES.reshape(2, 2, 2), ("p", "q", "r"))
KEYS = jax.random.split(jax.random.key(0), 2)
X = jax.random.normal(KEYS[0], (16, 32))
W = jax.random.normal(KEYS[1], (32, 64))
BOTH = ("x", "y")


def mapped(body: Any, in_specs: Any, out_specs: Any, *names: str, mesh: Any = MESH) -> Any:
    return jax.shard_map(
        body,
        mesh=mesh,
        in_specs=in_specs,
        out_specs=out_specs,
        axis_names=set(names),
        check_vma=False,
    )


def planned(fn: Any, *args: Any, **options: Any) -> Plan:
    return autoshard.optimize(fn, *args, mesh=MESH, hardware="cpu-host", baselines=False, **options)


def check(plan: Plan, fn: Any, *args: Any) -> list[tuple[str, tuple[str, ...], int, float]]:
    """Run the plan against the function itself; its collectives, which are those compiled."""
    np.testing.assert_allclose(plan.jit()(*args), jax.jit(fn)(*args), atol=1e-4)
    assert plan.data.misses == ()
    compiled = plan.jit().lower(*args).compile()
    comparison = compare_collectives(
        plan.data.collectives, read_compiled(compiled, plan.data.mesh).collectives
    )
    for row in comparison.rows:
        assert row.predicted_bytes == row.compiled_bytes, row
    return sorted((c.kind, c.axes, c.bytes_per_device, c.count) for c in plan.data.collectives)


@pytest.mark.parametrize(
    ("body", "in_specs", "out_specs", "expected"),
    [
        (lambda a: lax.psum(jnp.sin(a), "y"), P("x", "y"), P("x"), ("all-reduce", ("y",), 256)),
        (lambda a: lax.pmax(jnp.sin(a), BOTH), P("x", "y"), P(), ("all-reduce", BOTH, 256)),
        (
            lambda a: lax.all_gather(jnp.sin(a), "y", axis=1, tiled=True),
            P("x", "y"),
            P("x"),
            ("all-gather", ("y",), 1024),
        ),
        (
            lambda a: lax.psum_scatter(jnp.sin(a), "x", scatter_dimension=0, tiled=True),
            P(None, "y"),
            P("x", "y"),
            ("reduce-scatter", ("x",), 512),
        ),
        (
            lambda a: lax.all_to_all(jnp.sin(a), "x", 1, 0, tiled=True),
            P("x", "y"),
            P(None, ("y", "x")),
            ("all-to-all", ("x",), 256),
        ),
        (
            lambda a: lax.ppermute(jnp.sin(a), "y", [(i, (i + 1) % 4) for i in range(4)]),
            P("x", "y"),
            P("x", "y"),
            ("collective-permute", ("y",), 256),
        ),
        (
            lambda a: jnp.sum(a) * 0 + lax.pmean(jnp.mean(jnp.sin(a)), BOTH),
            P("x", "y"),
            P(),
            ("all-reduce", BOTH, 4),
        ),
    ],
    ids=["psum", "pmax", "all_gather", "psum_scatter", "all_to_all", "ppermute", "scalar"],
)
def test_what_the_user_sends_is_what_the_plan_lists(
    body: Any, in_specs: Any, out_specs: Any, expected: tuple[str, tuple[str, ...], int]
) -> None:
    def program(x: Any) -> Any:
        return mapped(body, in_specs, out_specs, *BOTH)(x)

    plan = planned(program, X)
    kind, axes, num_bytes = expected
    assert (kind, axes, num_bytes, 1.0) in check(plan, program, X)
    assert plan.data.communication_seconds > 0


def test_what_a_loop_sends_counts_as_often_as_it_turns() -> None:
    def program(x: Any, w: Any) -> Any:
        body = mapped(
            lambda a, b: jnp.tanh(lax.psum(a @ b, "y")), (P("x", "y"), P("y")), P("x"), *BOTH
        )
        return lax.scan(lambda carry, _: (body(carry, w), None), x, None, length=5)[0]

    square = W[:, :32]
    plan = planned(program, X, square)
    assert ("all-reduce", ("y",), 8 * 32 * 4, 5.0) in check(plan, program, X, square)


def test_free_axes_cut_what_is_sent_inside() -> None:
    def program(x: Any, w: Any) -> Any:
        body = mapped(lambda a, b: lax.psum(jnp.tanh(a) @ b, "x"), (P(None, "x"), P("x")), P(), "x")
        return body(x, w)

    plan = planned(program, X, W)
    whole = 16 * 64 * 4
    assert check(plan, program, X, W) == [("all-reduce", ("x",), whole // 4, 1.0)]
    assert plan.data.arguments[0].local_bytes < X.nbytes


def test_a_maximum_over_an_axis_of_size_one_is_not_cut() -> None:
    """XLA refuses it: "Cross-partition allreduce must be in (partial) manual partitioning mode"."""
    mesh = Mesh(DEVICES.reshape(1, 8), ("x", "y"))

    def fn(x: jax.Array) -> Any:
        region = jax.shard_map(
            lambda piece: piece - lax.pmax(piece, "x"),
            mesh=mesh,
            in_specs=P("x"),
            out_specs=P("x"),
            axis_names={"x"},
            check_vma=False,
        )
        return region(jnp.sin(x))

    x = np.ones((64, 64), np.float32)
    plan = autoshard.optimize(fn, x, mesh=mesh, in_shardings=P("y"), baselines=False)
    np.testing.assert_array_equal(plan.jit()(x), np.zeros_like(x))


def test_axes_inside_another_region_are_those_of_its_own() -> None:
    def program(x: Any, w: Any) -> Any:
        def outer(a: Any, b: Any) -> Any:
            inner = jax.shard_map(
                lambda p, q: lax.psum(p @ q, "y"),
                in_specs=(P(None, "y"), P("y")),
                out_specs=P(),
                axis_names={"y"},
                check_vma=False,
            )
            return lax.pmean(inner(jnp.tanh(a), b), "x")

        return mapped(outer, (P("x"), P()), P(), "x")(x, w)

    plan = planned(program, X, W, simplicity=0.0)
    over_x, over_y = check(plan, program, X, W)
    # Behind the inner region the outer one may cut what it sends along the axis free again.
    assert over_x == ("all-reduce", ("x",), 8 * 64 * 4 // 4, 1.0)
    assert over_y == ("all-reduce", ("y",), 8 * 64 * 4, 1.0)


def test_what_goes_in_and_comes_out_moves_at_the_border() -> None:
    def program(x: Any) -> Any:
        return mapped(lambda a: a[:, :8] * 2, P("x"), P("x", "y"), *BOTH)(x)

    inside, outside = NamedSharding(MESH, P("x", "y")), NamedSharding(MESH, P("x"))
    plan = planned(program, X, in_shardings=(inside,), out_shardings=outside)
    assert check(plan, program, X) == [("all-gather", ("y",), 8 * 32 * 4, 1.0)] * 2
    first, second = (collective.op for collective in plan.data.collectives)
    assert first.startswith("shard_map at ")
    assert second == "result"


def test_the_choice_follows_what_the_user_sends() -> None:
    """A body that sends much makes the plan keep outside what the body wants of its operands."""

    def program(x: Any, w: Any, inside: bool) -> Any:
        hidden = jnp.tanh(x @ w)
        if not inside:
            return hidden * 2
        return mapped(lambda a: lax.psum(a, "y") * 2, P("y", "x"), P(None, "x"), *BOTH)(hidden)

    free = planned(lambda x, w: program(x, w, False), X, W)
    plan = planned(lambda x, w: program(x, w, True), X, W)
    check(plan, lambda x, w: program(x, w, True), X, W)
    assert free.data.values["0.0"] != plan.data.values["0.0"]
    assert [str(dim.axes[0]) for dim in plan.data.values["0.0"].dims] == ['"y"', '"x"']


@pytest.mark.parametrize("names", [("p", "q", "r"), ("p", "r")], ids=["full", "partial"])
def test_a_region_may_be_on_another_mesh_over_the_same_devices(names: tuple[str, ...]) -> None:
    def program(x: Any, w: Any) -> Any:
        body = mapped(
            lambda a, b: lax.psum(a @ b, "r"), (P("p", "r"), P("r")), P("p"), *names, mesh=CUBE
        )
        return jnp.tanh(body(x, w))

    plan = planned(program, X, W)
    found = check(plan, program, X, W)
    assert ("all-reduce", ("y:(2)2",), 8 * 64 * 4, 1.0) in found


def test_the_gradient_of_a_region_sends_what_the_plan_says() -> None:
    def loss(x: Any, w: Any) -> Any:
        body = mapped(
            lambda a, b: lax.psum(jnp.tanh(a) @ b, "y"), (P("x", "y"), P("y")), P("x"), *BOTH
        )
        return (body(x, w) ** 2).sum()

    def program(x: Any, w: Any) -> Any:
        return jax.grad(loss, argnums=1)(x, w)

    plan = planned(program, X, W)
    found = check(plan, program, X, W)
    assert {axes for _, axes, _, _ in found} == {("x",), ("y",)}


def callback(x: Any, *names: str) -> Any:
    def body(a: Any) -> Any:
        made = jax.pure_callback(np.sin, jax.ShapeDtypeStruct(a.shape, a.dtype), a)
        return lax.psum(made, "x")

    spec = P("x", "y") if "y" in names else P("x")
    out = P(None, "y") if "y" in names else P()
    return mapped(body, spec, out, *names)(x)


def test_a_callback_may_be_called_where_every_axis_is_manual() -> None:
    plan = planned(lambda x: callback(x, *BOTH), X)
    assert check(plan, lambda x: callback(x, *BOTH), X) == [("all-reduce", ("x",), 256, 1.0)]


def test_a_callback_where_some_axes_are_free_is_refused_as_jax_refuses_it() -> None:
    with pytest.raises(ExportError) as caught:
        planned(lambda x: callback(x, "x"), X)
    assert caught.value.fix == (
        "let the shard_map around the callback map over every axis of the mesh (leave out"
        " axis_names), or move the callback out of it"
    )
    assert "callbacks are only supported in spmd computations" in caught.value.what


@pytest.mark.parametrize(("sizes", "names"), [((2, 4), ("x", "y")), ((8,), ("r",))])
def test_a_region_in_another_device_order_runs_in_the_order_of_the_plan(
    sizes: tuple[int, ...], names: tuple[str, ...]
) -> None:
    shuffled = Mesh(DEVICES[[0, 1, 2, 3, 4, 5, 7, 6]].reshape(sizes), names)
    name, size = names[0], sizes[0]

    def shifted(a: Any) -> Any:
        pairs = [(place, (place + 1) % size) for place in range(size)]
        return lax.ppermute(a, name, pairs) + lax.axis_index(name)

    def step(x: Any) -> Any:
        return jnp.tanh(mapped(shifted, P(name), P(name), name, mesh=shuffled)(x))

    plan = planned(step, X)
    np.testing.assert_allclose(plan.jit()(X), jax.jit(step)(X), rtol=1e-6)
    assert verify_module(plan.stablehlo("collectives")) == ()


def test_a_body_over_axes_of_one_device_is_cut_along_whole_axes() -> None:
    """No `PartitionSpec` in it names sub-axes, which what is around it may use."""
    mesh = Mesh(DEVICES.reshape(1, 8), ("a", "b"))
    fine = Mesh(DEVICES.reshape(1, 2, 4), ("a", "c", "d"))
    body = jax.shard_map(jnp.sin, mesh=mesh, in_specs=P("a"), out_specs=P("a"), axis_names={"a"})
    x = jnp.ones((8, 8))
    plan = autoshard.optimize(
        body,
        x,
        mesh=mesh,
        hardware="cpu-host",
        baselines=False,
        in_shardings=P("b"),
        out_shardings=NamedSharding(fine, P("c", "d")),
    )
    made = plan.jit()(jax.device_put(x, plan.in_shardings[0]))
    np.testing.assert_allclose(made, jnp.sin(x), rtol=1e-6)
