"""Matmuls of which a part is taken, as matmuls of parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from autoshard.frontend.sliced_matmuls import with_sliced_matmuls
from autoshard.frontend.trace import trace
from autoshard.sharding import parse_mesh_sizes


def rewritten(run: Callable[..., Any], *args: Any) -> Any:
    """The program with sliced matmuls."""
    closed = jax.make_jaxpr(run)(*args)
    return closed.replace(jaxpr=with_sliced_matmuls(closed.jaxpr))


def shapes(jaxpr: Any, name: str = "dot_general") -> list[tuple[int, ...]]:
    """Of the results of all equations of one name."""
    return [eqn.outvars[0].aval.shape for eqn in jaxpr.eqns if eqn.primitive.name == name]


def arrays(*dims: tuple[int, ...]) -> list[Any]:
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.normal(size=one), "float32") for one in dims]


def require_same(run: Callable[..., Any], *args: Any) -> Any:
    """The rewritten program, which makes what the program makes."""
    found = rewritten(run, *args)
    made = jax.core.eval_jaxpr(found.jaxpr, found.consts, *args)
    for one, other in zip(made, jax.tree.leaves(run(*args)), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    return found.jaxpr


def padded(value: Any, dim: int, filling: float = 0.0) -> Any:
    edges = [(0, int(place == dim), 0) for place in range(value.ndim)]
    return jax.lax.pad(value, jnp.float32(filling), edges)


def logits(x: Any, weight: Any) -> Any:
    return jnp.einsum("btd,vd->btv", jnp.tanh(x), weight)


def test_what_is_multiplied_is_sliced() -> None:
    x, weight = arrays((2, 8, 4), (16, 4))
    jaxpr = require_same(lambda x, w: logits(x, w)[:, 1:-2], x, weight)
    assert shapes(jaxpr) == [(2, 5, 16)]
    assert shapes(jaxpr, "slice") == [(2, 5, 4)]


def test_conversions_between_are_of_the_part() -> None:
    x, weight = (one.astype("bfloat16") for one in arrays((2, 8, 4), (16, 4)))
    jaxpr = require_same(lambda x, w: logits(x, w).astype("float32")[:, ::2], x, weight)
    assert shapes(jaxpr, "convert_element_type") == [(2, 4, 16)]


def test_gradients_multiply_parts_too() -> None:
    x, weight = arrays((2, 8, 4), (16, 4))

    def loss(x: Any, weight: Any) -> Any:
        kept = logits(x, weight).astype("float32")[:, :-1]
        return jax.nn.logsumexp(kept, axis=-1).sum()

    jaxpr = require_same(jax.value_and_grad(loss, (0, 1)), x, weight)
    assert sorted(shapes(jaxpr)) == [(2, 7, 4), (2, 7, 16), (16, 4)]
    assert shapes(jaxpr, "pad") == [(2, 8, 4)]


def test_both_operands_are_sliced_along_a_batch() -> None:
    left, right = arrays((4, 3, 5), (4, 5, 2))

    def run(left: Any, right: Any) -> Any:
        return (jnp.sin(left) @ jnp.cos(right))[1:3, :2]

    jaxpr = require_same(run, left, right)
    assert shapes(jaxpr) == [(2, 2, 2)]


@pytest.mark.parametrize(
    "run",
    [
        lambda x, w: (x @ w)[1:],
        lambda x, w: (jnp.tanh(x) @ w.T.astype("float32").T)[:, 1:],
        lambda x, w: jnp.split(jnp.tanh(x) @ w, 2),
        lambda x, w: (lambda made: (made[1:], made))(jnp.tanh(x) @ w),
        lambda x, w: jnp.sin(jnp.tanh(x) @ w)[1:],
        lambda x, w: padded(jnp.tanh(x[:, 1:]), 1) @ w,
        lambda x, w: padded(jnp.tanh(x), 0, 1.0) @ w,
        lambda x, w: (lambda made: made @ made.T + w[:5, :5])(padded(jnp.tanh(x), 0)),
        lambda x, w: (lambda made: (made @ w, made))(padded(jnp.tanh(x), 0)),
    ],
    ids=[
        "an argument",
        "a weight in another order",
        "all parts are taken",
        "read whole too",
        "computed with before",
        "what a weight is multiplied with is padded",
        "padded with ones",
        "padded on both sides",
        "what is padded is a result",
    ],
)
def test_other_matmuls_stay(run: Callable[..., Any]) -> None:
    x, weight = arrays((4, 6), (6, 6))
    closed = jax.make_jaxpr(run)(x, weight)
    before = shapes(closed.jaxpr)
    assert shapes(require_same(run, x, weight))[: len(before)] == before


def test_a_part_of_what_pads_read_is_taken_once() -> None:
    """One matmul both reads what is padded and is sliced: one of the two is done."""
    x, weight = arrays((4, 6), (6, 6))

    def run(x: Any, weight: Any) -> Any:
        return (padded(jnp.tanh(x), 0) @ weight)[:-1]

    require_same(run, x, weight)


def test_bodies_are_rewritten_too() -> None:
    x, weight = arrays((3, 2, 8, 4), (16, 4))

    def run(x: Any, weight: Any) -> Any:
        body = lambda total, row: (total + logits(row, weight)[:, :-1], None)  # noqa: E731
        return jax.lax.scan(body, jnp.zeros((2, 7, 16)), x)[0]

    jaxpr = require_same(run, x, weight)
    (scan,) = (eqn for eqn in jaxpr.eqns if eqn.primitive.name == "scan")
    assert shapes(scan.params["jaxpr"].jaxpr) == [(2, 7, 16)]


def test_a_matmul_with_a_sharding_in_its_type_stays() -> None:
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
    with jax.set_mesh(mesh):
        x = jax.ShapeDtypeStruct((2, 8, 4), jnp.float32, sharding=NamedSharding(mesh, P("x")))
        weight = jax.ShapeDtypeStruct((16, 4), jnp.float32, sharding=NamedSharding(mesh, P()))
        closed = jax.make_jaxpr(lambda x, w: logits(x, w)[:, :-1])(x, weight)
    assert shapes(closed.jaxpr) == [(2, 8, 16)]
    assert with_sliced_matmuls(closed.jaxpr) is closed.jaxpr


def test_a_program_without_is_itself() -> None:
    x, weight = arrays((2, 8, 4), (16, 4))
    closed = jax.make_jaxpr(logits)(x, weight)
    assert with_sliced_matmuls(closed.jaxpr) is closed.jaxpr


def test_a_part_that_the_program_takes_twice_is_one_part() -> None:
    def loss(x: Any, weight: Any, labels: Any) -> Any:
        made = logits(x, weight)
        picked = jnp.take_along_axis(made[:, :-1], labels[..., None], -1)
        return (jax.nn.logsumexp(made[:, :-1], -1) - picked[..., 0]).sum()

    x, weight = arrays((2, 8, 4), (16, 4))
    traced = trace(loss, (x, weight, jnp.zeros((2, 7), "int32")), {}, mesh=parse_mesh_sizes("x=2"))
    assert shapes(traced.jaxpr.jaxpr) == [(2, 7, 16)]
