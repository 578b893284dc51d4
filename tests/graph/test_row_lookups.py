"""Look-ups and scatters that take whole rows, and those that take elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard.graph.product_writes import updates
from autoshard.graph.row_lookups import looked_up_tables, row_updates, row_values, takes_rows
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


def adam(table: Any, moments: Any, gradient: Any) -> Any:
    first, second = moments
    first, second = 0.9 * first + 0.1 * gradient, 0.99 * second + 0.01 * gradient**2
    return table - 0.1 * first * jax.lax.rsqrt(second + 1e-6), (first, second)


def squares_apart(table: Any, moments: Any, gradient: Any) -> Any:
    first, second = moments
    return table - 0.1 * gradient, (first + gradient**2, second + gradient**3)


@pytest.mark.parametrize(
    ("update", "num_moments", "num_states"),
    [(sgd, 1, 0), (momentum, 1, 1), (adagrad, 1, 2), (adam, 2, 0), (squares_apart, 2, 3)],
)
def test_updates_of_several_states_compute_in_rows_but_not_adams(
    update: Callable[..., Any], num_moments: int, num_states: int
) -> None:
    """As libtpu 0.0.52 compiles them for a v5e and a v5p."""

    def step(tables: Any, moments: Any, indices: Any) -> Any:
        def loss(tables: Any) -> Any:
            return jnp.sin(jnp.concatenate([table[indices] for table in tables])).sum()

        grads = jax.grad(loss)(tables)
        return [update(*one) for one in zip(tables, moments, grads, strict=True)]

    moment = TABLE if num_moments == 1 else (TABLE,) * num_moments
    graph = solved(step, [TABLE] * 2, [moment] * 2, ROWS).graph
    tables = looked_up_tables(graph)
    assert [graph.values[value].shape for value in tables] == [(64, 128)] * 2
    found = [*row_updates(graph, updates(graph))]
    assert [len(one.states) for one in found] == [num_states] * 2 * bool(num_states)
    for one in found:
        assert graph.ops[one.scatter].name == "scatter"
        assert len(one.made) == 1 + num_moments
        assert len(tables.keys() & {*one.states}) == 1
        assert one.scatter < min(one.ops)


def test_tables_that_are_computed_are_copied_for_each_look_up() -> None:
    graph = solved(lambda table, indices: jnp.sin(table)[indices], TABLE, ROWS).graph
    assert not looked_up_tables(graph)
