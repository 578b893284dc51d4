"""Schedules in the place of products of a program."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxpr_as_fun

from autoshard.apply.constrain import constrain_jaxpr
from autoshard.errors import PlanError
from autoshard.frontend.rewritable_equations import MATMULS, rewritable_equations
from autoshard.loops.dot_schedule import DotSchedule
from autoshard.sharding import parse_sharding

AUTO = (jax.sharding.AxisType.Auto,)
MESH = jax.make_mesh((8,), ("data",), axis_types=AUTO)
ROWS = parse_sharding('[{"data"}, {}]')
SCHEDULE = DotSchedule(
    statement="A(a,b) += B(a,c) * C(c,b)",
    homes=(ROWS, ROWS, ROWS),
    grid=("data",),
    cut=("a",),
    over="c",
    panel=8,
    num_steps=4,
)


def double(x: jax.Array, w: jax.Array) -> Any:
    def body(y: jax.Array, _: None) -> tuple[jax.Array, None]:
        return jnp.tanh(y @ w), None

    return jax.lax.scan(body, x @ w, None, length=3)[0]


def arrays(dtype: str = "float32") -> list[jax.Array]:
    draw = np.random.default_rng(2)
    return [jnp.asarray(draw.normal(size=shape) / 6, dtype) for shape in ((16, 32), (32, 32))]


def paths_of(closed: Any) -> list[str]:
    return list(rewritable_equations(closed.jaxpr, MATMULS))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_products_outside_and_inside_a_loop_are_replaced(dtype: str) -> None:
    x, w = arrays(dtype)
    closed = jax.make_jaxpr(double)(x, w)
    paths = paths_of(closed)
    assert len(paths) == 2
    made = constrain_jaxpr(closed, {}, MESH, dict.fromkeys(paths, SCHEDULE))
    assert paths_of(made) == []
    (found,) = jax.jit(jaxpr_as_fun(made))(x, w)
    expected = double(x.astype("float32"), w.astype("float32"))
    tolerance = 1e-5 if dtype == "float32" else 3e-2
    assert found.dtype == x.dtype
    np.testing.assert_allclose(found.astype("float32"), expected, rtol=tolerance, atol=tolerance)


def loops_of(closed: Any) -> list[Any]:
    """The `shard_map` equations of calls, in order."""
    return [
        inner
        for eqn in closed.jaxpr.eqns
        if "jaxpr" in eqn.params
        for inner in eqn.params["jaxpr"].jaxpr.eqns
        if inner.primitive.name == "shard_map"
    ]


def loop_of(make: Any) -> Any:
    """The one product of a function of two arrays, in steps."""
    x, w = arrays()
    closed = jax.make_jaxpr(make)(x, w)
    (path,) = paths_of(closed)
    made = constrain_jaxpr(closed, {}, MESH, {path: SCHEDULE})
    (found,) = jax.jit(jaxpr_as_fun(made))(x, w)
    np.testing.assert_allclose(found, make(x, w), rtol=1e-5, atol=1e-5)
    (loop,) = loops_of(made)
    return loop


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda x, w: (x @ w).T - 1, (32, 16)),
        (lambda x, w: jnp.sum((y := x @ w).T) + y, (16, 32)),
        (lambda x, w: x @ w - 1, (16, 32)),
    ],
    ids=["turned", "read as it is too", "not turned"],
)
def test_a_result_that_is_only_read_turned_is_made_so(make: Any, shape: tuple[int, ...]) -> None:
    assert loop_of(make).outvars[0].aval.shape == shape


def test_a_result_turned_to_and_fro_is_made_as_it_was() -> None:
    turned = SCHEDULE.made_in((1, 0))
    assert turned.statement == "A(b,a) += B(a,c) * C(c,b)"
    assert turned.homes == (parse_sharding('[{}, {"data"}]'), ROWS, ROWS)
    assert turned.made_in((1, 0)) == SCHEDULE


def test_products_in_steps_run_one_after_the_other() -> None:
    closed = jax.make_jaxpr(lambda x, w: (x @ w, (x + 1) @ w))(*arrays())
    made = constrain_jaxpr(closed, {}, MESH, dict.fromkeys(paths_of(closed), SCHEDULE))
    first, second = loops_of(made)
    assert len(first.invars) == 2
    assert [var.aval.shape for var in second.invars] == [(16, 32), (32, 32), (16, 32)]
    for found, expected in zip(
        jax.jit(jaxpr_as_fun(made))(*arrays()), jaxpr_as_fun(closed)(*arrays()), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("axes", [("data", "model"), ("model", "data")])
def test_products_in_steps_over_different_axes_wait_for_none(axes: tuple[str, ...]) -> None:
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    closed = jax.make_jaxpr(lambda x, w: (x @ w, (x + 1) @ w))(*arrays())
    rows = {axis: parse_sharding(f'[{{"{axis}"}}, {{}}]') for axis in axes}
    schedules = [replace(SCHEDULE, homes=(rows[axis],) * 3, grid=(axis,)) for axis in axes]
    made = constrain_jaxpr(closed, {}, mesh, dict(zip(paths_of(closed), schedules, strict=True)))
    assert [len(loop.invars) for loop in loops_of(made)] == [2, 2]
    for found, expected in zip(
        jax.jit(jaxpr_as_fun(made))(*arrays()), jaxpr_as_fun(closed)(*arrays()), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_products_inside_a_shard_map_are_not_named() -> None:
    rows = jax.sharding.PartitionSpec("data")

    def mapped(x: jax.Array, w: jax.Array) -> Any:
        whole = jax.sharding.PartitionSpec()
        inner = jax.shard_map(lambda a, b: a @ b, mesh=MESH, in_specs=(rows, whole), out_specs=rows)
        return inner(x, w) @ w

    closed = jax.make_jaxpr(mapped)(*arrays())
    assert len(paths_of(closed)) == 1


def test_a_schedule_of_another_product_is_refused() -> None:
    closed = jax.make_jaxpr(lambda x, w: x @ w)(*arrays())
    other = replace(SCHEDULE, statement="A(a,b) += B(a,c) * C(b,c)")
    with pytest.raises(PlanError) as caught:
        constrain_jaxpr(closed, {}, MESH, {"0": other})
    assert str(caught.value) == (
        "the plan has a schedule for A(a,b) += B(a,c) * C(b,c), and there is"
        " A(a,b) += B(a,c) * C(c,b)\n"
        "  where: 0\n"
        "  fix: plan again for this program"
    )


def test_a_schedule_for_no_equation_is_refused() -> None:
    closed = jax.make_jaxpr(lambda x, w: x @ w)(*arrays())
    with pytest.raises(PlanError) as caught:
        constrain_jaxpr(closed, {}, MESH, {"7": SCHEDULE})
    assert str(caught.value) == (
        "the program has no value or use called 7\n"
        "  where: 1 of 1 constraints\n"
        "  fix: plan again for this program, or pass the function the plan was made for"
    )
