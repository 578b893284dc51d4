"""Slices of stacks that are written before matmuls read them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from autoshard.graph.program import Graph
from autoshard.graph.sliced_operands import sliced_operands
from tests.planner.traced import exported

LAYERS, BATCH, LENGTH, FEATURES, HEADS = 3, 2, 16, 32, 4
Layer = Callable[[Any, tuple[Any, ...]], Any]


def attention(x: Any, weights: tuple[Any, ...]) -> Any:
    query, key, value = (
        (x @ weight).reshape(BATCH, LENGTH, HEADS, FEATURES // HEADS) for weight in weights[:3]
    )
    scores = jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", jnp.sin(query), key))
    made = jnp.einsum("bhts,bshd->bthd", scores, value)
    return x + made.reshape(BATCH, LENGTH, FEATURES) @ weights[3]


def mlp(x: Any, weights: tuple[Any, ...]) -> Any:
    return x + jnp.tanh(x @ weights[0]) @ weights[1]


def twice(x: Any, weights: tuple[Any, ...]) -> Any:
    return jnp.tanh(x @ weights[0]) @ weights[0]


def scanned(layer: Layer, num_weights: int) -> Graph:
    def program(x: Any, *stacks: Any) -> Any:
        return jax.lax.scan(lambda x, w: (layer(x, w), None), x, stacks)[0]

    x = jax.ShapeDtypeStruct((BATCH, LENGTH, FEATURES), jnp.float32)
    stack = jax.ShapeDtypeStruct((LAYERS, FEATURES, FEATURES), jnp.float32)
    return exported(program, x, *[stack] * num_weights, mesh="x=1")[0]


def test_projections_to_heads_are_and_the_one_back_is_not() -> None:
    assert len(sliced_operands(scanned(attention, 4))) == 3


def test_a_weight_that_a_matmul_multiplies_in_rows_is_not() -> None:
    assert not sliced_operands(scanned(mlp, 2))


def test_each_of_two_matmuls_slices_a_weight_that_both_multiply_in_rows() -> None:
    # tanh(x @ w) @ w, and its gradient without a barrier, by libtpu 0.0.52 for a v5e and a v5p
    assert not sliced_operands(scanned(twice, 1))


@pytest.mark.parametrize("layer", [attention, mlp])
def test_outside_of_loops_nothing_is(layer: Layer) -> None:
    x = jax.ShapeDtypeStruct((BATCH, LENGTH, FEATURES), jnp.float32)
    weights = [jax.ShapeDtypeStruct((FEATURES, FEATURES), jnp.float32)] * 4
    graph, _ = exported(lambda x, *w: layer(x, w), x, *weights, mesh="x=1")
    assert not sliced_operands(graph)
