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
