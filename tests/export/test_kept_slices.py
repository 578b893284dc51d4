"""Exported programs whose slices XLA would make one of: their numbers are those of the function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import autoshard
from tests.export.compile_module import compiles

MESH = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
ROWS = np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)


def row_written_behind_a_slice(x: jax.Array, row: jax.Array) -> Any:
    held = lax.with_sharding_constraint(jnp.sort(x, 0), NamedSharding(MESH, P("model")))
    return (held * 1).at[0].set(row)


def rows_past_the_end(x: jax.Array, start: jax.Array) -> Any:
    return lax.dynamic_slice(jnp.sin(x), (start, jnp.zeros_like(start)), (8, 4))


def row_past_the_end(x: jax.Array, start: jax.Array) -> Any:
    changed = lax.dynamic_update_slice(x, x[:1], (start, jnp.zeros_like(start)))
    return lax.with_sharding_constraint(changed, NamedSharding(MESH, P("model")))


def test_a_tensor_updated_by_its_own_first_rows_gathered_keeps_the_other_rows() -> None:
    """XLA fills the other rows with zeros where shards of both have one size (jaxlib 0.10.2)."""
    rows = 13

    def updated(x: jax.Array) -> Any:
        first = lax.with_sharding_constraint(x[:rows], NamedSharding(MESH, P()))
        return lax.dynamic_update_slice_in_dim(x, first, 2, 0)

    given = {"in_shardings": P(("data", "model")), "out_shardings": P(("data", "model"))}
    plan = autoshard.optimize(updated, ROWS, mesh=MESH, hardware="cpu-host", **given)
    expected = np.array(ROWS)
    expected[2 : 2 + rows] = ROWS[:rows]
    np.testing.assert_array_equal(np.asarray(plan.jit()(ROWS)), expected)
    text = plan.stablehlo("collectives", platform="cpu")
    np.testing.assert_array_equal(compiles(text, plan.export(), (ROWS,), plan)[0], expected)


@pytest.mark.parametrize(
    ("function", "argument"),
    [
        (row_written_behind_a_slice, np.full(8, 3, np.float32)),
        (rows_past_the_end, np.int32(13)),
        (rows_past_the_end, np.uint32(13)),
        (row_past_the_end, np.int32(99)),
    ],
)
def test_an_exported_program_computes_what_the_function_does(
    function: Callable[..., Any], argument: Any
) -> None:
    plan = autoshard.optimize(function, ROWS, argument, mesh=MESH, hardware="h100")
    placed = [
        jax.device_put(a, s) for a, s in zip((ROWS, argument), plan.in_shardings, strict=True)
    ]
    found = jax.jit(plan.export().call)(*placed)
    np.testing.assert_allclose(np.asarray(found), np.asarray(function(ROWS, argument)), rtol=1e-6)


def convolved(image: jax.Array) -> Any:
    kernel = jnp.sin(jnp.arange(72.0)).reshape(3, 3, 1, 8)
    names = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(
        image, kernel, (2, 2), "SAME", dimension_numbers=names, feature_group_count=4
    )


def cut_by_its_reader(x: jax.Array, y: jax.Array) -> Any:
    return convolved(lax.dot_general(x, y, (((2,), (2,)), ((), ()))))


def cut_in_space(x: jax.Array, y: jax.Array) -> Any:
    rows = jax.nn.one_hot(y.argmax(-1), y.shape[-1])
    return convolved(lax.dot_general(x, rows, (((2,), (2,)), ((), ())))), rows


FEATURES = P(None, None, None, ("model", "data"))


@pytest.mark.parametrize(
    ("function", "results"),
    [(cut_by_its_reader, FEATURES), (cut_in_space, (FEATURES, P(None, "model")))],
)
def test_an_exported_convolution_in_groups_is_cut_as_the_module_says(
    function: Callable[..., Any], results: Any
) -> None:
    """Cut within a group, or in space by one of two axes, it is wrong (jaxlib 0.10.2)."""
    x, y = np.random.default_rng(1).normal(size=(2, 3, 4, 8)).astype(np.float32)
    plan = autoshard.optimize(function, x, y, mesh=MESH, hardware="cpu-host", out_shardings=results)
    expected = jax.tree.leaves(jax.jit(function)(x, y))
    for stage in ("explicit", "collectives"):
        text = plan.stablehlo(stage, platform="cpu")
        for made, wanted in zip(compiles(text, plan.export(), (x, y), plan), expected, strict=True):
            np.testing.assert_allclose(made, wanted, rtol=1e-4, atol=1e-4)
