"""Copies of narrow rows, beside what libtpu 0.0.52 compiles for one chip of a v5e."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.graph.test_row_lookups import adagrad, momentum, sgd
from tests.planner.graphs import plan
from tests.planner.traced import exported

TABLE = jax.ShapeDtypeStruct((200_000, 64), jnp.float32)


def seconds(fn: Callable[..., Any], *args: Any, hardware: str = "tpu-v5e") -> float:
    graph, wishes = exported(fn, *args, mesh="x=1")
    return plan(graph, "x=1", wishes, None, hardware).account.compute_seconds


@pytest.mark.parametrize(
    ("update", "compiled"), [(sgd, 563e-6), (adagrad, 2092e-6), (momentum, 1609e-6)]
)
def test_an_update_takes_its_copies_to_rows_and_back(update: Any, compiled: float) -> None:
    def step(table: Any, moment: Any, indices: Any, cotangents: Any) -> Any:
        gradient = jax.grad(lambda one: (one[indices] * cotangents).sum())(table)
        return update(table, moment, gradient)

    indices = jax.ShapeDtypeStruct((8192,), jnp.int32)
    cotangents = jax.ShapeDtypeStruct((8192, 64), jnp.float32)
    assert seconds(step, TABLE, TABLE, indices, cotangents) == pytest.approx(compiled, rel=0.15)


def bag(num_ids: int, hardware: str) -> float:
    """Seconds of weighted sums of rows."""
    indices = jax.ShapeDtypeStruct((8192, num_ids), jnp.int32)
    weights = jax.ShapeDtypeStruct((8192, num_ids), jnp.float32)
    return seconds(
        lambda table, i, w: (table[i] * w[:, :, None]).sum(1),
        TABLE,
        indices,
        weights,
        hardware=hardware,
    )


@pytest.mark.parametrize(("num_ids", "compiled"), [(20, 1537e-6), (16, 703e-6)])
def test_bags_that_do_not_fill_whole_tiles_are_copied(num_ids: int, compiled: float) -> None:
    assert bag(num_ids, "tpu-v5e") == pytest.approx(compiled, rel=0.1)
    assert bag(20, "h100") < 1.3 * bag(16, "h100")
