"""Tensors that are parts of one another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from autoshard.graph.moved_parts import MovedParts, moved_parts
from autoshard.graph.program import Graph
from tests.planner.traced import exported


def found(fn: Callable[..., Any], *shapes: tuple[int, ...]) -> tuple[Graph, set[MovedParts]]:
    """The program of a function, and all parts in it, as if every value were stored."""
    given = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
    graph = exported(fn, *given, mesh="x=2")[0]
    return graph, set(moved_parts(graph, [True] * len(graph.values)).values())


def test_slices_and_what_is_computed_of_them_lie_with_the_whole() -> None:
    _, (parts,) = found(lambda x: jnp.sin(jnp.cos(x)[:, ::2]) * 2.0, (4, 8, 16))
    assert dict(parts.shapes) == {(4, 4, 16): 4, (4, 8, 16): 1}  # two constants and two results


@pytest.mark.parametrize(
    "move",
    [
        lambda x: jnp.pad(x, ((0, 0), (0, 8), (0, 0))),
        lambda x: jnp.concatenate([x, x], axis=2),
        lambda x: x[1:],
    ],
    ids=["pad", "concatenate", "slice"],
)
def test_one_group_goes_through_every_op_that_moves_parts(move: Callable[..., Any]) -> None:
    graph, (parts,) = found(lambda x: jnp.sin(move(jnp.cos(x))), (4, 8, 16))
    moved = next(op for op in graph.ops if op.name == "sine").results[0]
    assert {shape for shape, _ in parts.shapes} == {(4, 8, 16), graph.values[moved].shape}


def test_arguments_and_what_a_matmul_reads_of_them_are_no_parts() -> None:
    graph, _ = found(lambda x, w: jnp.concatenate([jnp.sin(x), x]) @ w, (4, 8), (8, 16))
    lying = moved_parts(graph, [True] * len(graph.values))
    assert not {op.results[0] for op in graph.arguments} & set(lying)
    made = next(op for op in graph.ops if op.name == "dot_general").results[0]
    assert made not in lying


def test_groups_of_the_same_buffers_are_one_object() -> None:
    def twice(x: jax.Array, w: jax.Array) -> jax.Array:
        for _ in range(2):
            x = jnp.cos(jnp.sin(x @ w)[:, :8])
        return x

    graph, groups = found(twice, (4, 8), (8, 16))
    lying = moved_parts(graph, [True] * len(graph.values))
    assert len(lying) == 8  # of each layer the matmul, its sine, the slice and its cosine
    assert len(groups) == 1


def test_what_is_reversed_has_one_shape_and_is_no_group() -> None:
    assert found(lambda x: jnp.flip(jnp.sin(x), 0) * 2.0, (4, 8))[1] == set()


def test_only_buffers_count() -> None:
    graph, _ = found(lambda x: jnp.sin(jnp.cos(x)[1:]), (4, 8))
    assert moved_parts(graph, [False] * len(graph.values)) == {}


def test_what_columns_of_a_matmul_were_split_into_is_told() -> None:
    def rotated(x: Any, w: Any) -> Any:
        left, right = jnp.split((x @ w).reshape(4, 8, 2, 16), 2, -1)
        return jnp.concatenate([left - right, left + right], -1)

    _, (parts,) = found(rotated, (4, 8, 16), (16, 32))
    assert parts.columns == 16
    _, (parts,) = found(lambda x, w: jnp.sin((x @ w)[:, :8]), (4, 8), (8, 32))
    assert parts.columns == 0
