"""Look-ups and scatters that take whole rows, and those that take elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard.graph.product_writes import updates
from autoshard.graph.row_lookups import looked_up_tables, row_values, takes_rows, updated_rows
from autoshard.planning.solution import Solution


def solved(fn: Callable[..., Any], *shapes: jax.ShapeDtypeStruct) -> Solution:
    plan = autoshard.optimize(fn, *shapes, mesh="x=2", hardware="cpu-host", baselines=False)
    assert plan.solution is not None
    return plan.solution


TABLE = jax.ShapeDtypeStruct((64, 128), jnp.float32)
COLUMN = jax.ShapeDtypeStruct((64, 1), jnp.float32)
ROWS = jax.ShapeDtypeStruct((16,), jnp.int32)


@pytest.mark.parametrize(
    ("fn", "shapes", "expected"),
    [
        (lambda t, i: t[i], (TABLE, ROWS), True),
        (lambda t, i: t[i, i], (TABLE, ROWS), False),
        (lambda t, i: t.at[i].add(1.0), (TABLE, ROWS), True),
        (lambda t, i: t.at[i, i].add(1.0), (TABLE, ROWS), False),
        (lambda t, i: t.at[:, i].add(1.0), (TABLE, ROWS), False),
        (lambda t, i: t[i], (COLUMN, ROWS), False),
        (lambda t, i: t.at[i].add(1.0), (COLUMN, ROWS), False),
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


def sgd(table: Any, _: Any, gradient: Any) -> Any:
    return table - 0.1 * gradient


def adagrad(table: Any, moment: Any, gradient: Any) -> Any:
    moment = moment + gradient**2
    return table - 0.1 * gradient * jax.lax.rsqrt(moment + 1e-6), moment


def momentum(table: Any, moment: Any, gradient: Any) -> Any:
    moment = 0.9 * moment + gradient
    return table - 0.1 * moment, moment


@pytest.mark.parametrize(("update", "num_kept"), [(sgd, 0), (momentum, 0), (adagrad, 2)])
def test_copies_of_tables_are_there_until_an_update_that_reads_other_states_as_they_are(
    update: Callable[..., Any], num_kept: int
) -> None:
    def step(tables: Any, moments: Any, indices: Any) -> Any:
        def loss(tables: Any) -> Any:
            return jnp.sin(jnp.concatenate([table[indices] for table in tables])).sum()

        grads = jax.grad(loss)(tables)
        return [update(*one) for one in zip(tables, moments, grads, strict=True)]

    graph = solved(step, [TABLE] * 2, [TABLE] * 2, ROWS).graph
    tables = looked_up_tables(graph)
    assert [graph.values[value].shape for value in tables] == [(64, 128)] * 2
    found = [*updated_rows(graph, looked_up_tables(graph), updates(graph))]
    assert len(found) == num_kept
    for look_up, scatter, last in found:
        assert look_up in tables.values()
        assert [graph.ops[index].name for index in (look_up, scatter)] == ["gather", "scatter"]
        assert graph.consumers[graph.ops[last].results[0]]
        assert scatter < last


def test_tables_that_are_computed_are_copied_for_each_look_up() -> None:
    graph = solved(lambda table, indices: jnp.sin(table)[indices], TABLE, ROWS).graph
    assert not looked_up_tables(graph)
