"""Look-ups and scatters that take whole rows, and those that take elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard.graph.row_lookups import row_values, takes_rows
from autoshard.planning.solution import Solution


def solved(fn: Callable[..., Any], *shapes: jax.ShapeDtypeStruct) -> Solution:
    plan = autoshard.optimize(fn, *shapes, mesh="x=2", hardware="cpu-host", baselines=False)
    assert plan.solution is not None
    return plan.solution


TABLE = jax.ShapeDtypeStruct((64, 128), jnp.float32)
ROWS = jax.ShapeDtypeStruct((16,), jnp.int32)


@pytest.mark.parametrize(
    ("fn", "shapes", "expected"),
    [
        (lambda t, i: t[i], (TABLE, ROWS), True),
        (lambda t, i: t[i, i], (TABLE, ROWS), False),
        (lambda t, i: t.at[i].add(1.0), (TABLE, ROWS), True),
        (lambda t, i: t.at[i, i].add(1.0), (TABLE, ROWS), False),
        (lambda t, i: t.at[:, i].add(1.0), (TABLE, ROWS), False),
    ],
)
def test_rows_are_taken_where_the_last_dimension_stays_whole(
    fn: Callable[..., Any], shapes: tuple[jax.ShapeDtypeStruct, ...], *, expected: bool
) -> None:
    graph = solved(fn, *shapes).graph
    (op,) = (op for op in graph.ops if op.name in ("gather", "scatter"))
    assert takes_rows(graph, op) is expected


def test_what_lies_between_look_ups_and_scatters_lies_row_by_row() -> None:
    def fn(table: Any, indices: Any) -> Any:
        taken = jnp.tanh(table[indices])
        return jnp.zeros_like(table).at[indices].add(taken * 2.0)

    graph = solved(fn, TABLE, ROWS).graph
    found = {graph.maker(value).name for value in row_values(graph, frozenset())}
    assert {"gather", "tanh", "multiply", "scatter"} <= found
    assert "argument" not in found


def test_what_lies_beside_the_result_of_a_matmul_does_not_lie_row_by_row() -> None:
    def fn(table: Any, indices: Any, weights: Any) -> Any:
        taken = table[indices]
        return jnp.zeros_like(table).at[indices].add(jnp.tanh(taken + taken @ weights))

    square = jax.ShapeDtypeStruct((128, 128), jnp.float32)
    graph = solved(fn, TABLE, ROWS, square).graph
    found = {graph.maker(value).name for value in row_values(graph, frozenset())}
    assert found == {"scatter"}
