"""Values that products write in the place of their results."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from autoshard.graph.product_writes import written_by_products
from tests.planner.traced import exported

HEADS = jax.ShapeDtypeStruct((4, 2, 64, 32), jnp.bfloat16)
LONGEST_ROW = 8192


def written(fn: Any) -> str:
    """The op whose result the first matmul writes."""
    graph, _ = exported(fn, HEADS, HEADS, mesh="x=2")
    product = next(op for op in graph.ops if op.name == "dot_general")
    made = product.results[0]
    return graph.maker(written_by_products(graph, LONGEST_ROW).get(made, made)).name


def scores(query: Any, key: Any) -> Any:
    return jnp.einsum("bhqd,bhkd->bhqk", query, key, preferred_element_type=jnp.float32)


@pytest.mark.parametrize(
    ("between", "expected"),
    [
        (lambda made: made * 2.0, "multiply"),
        (lambda made: (made * 2.0)[None, :, :, :, :], "reshape"),
        (lambda made: jnp.moveaxis((made * 2.0)[:, :, None], 2, 0) + 1.0, "add"),
        (lambda made: jnp.swapaxes(made * 2.0, 1, 2) + 1.0, "multiply"),
    ],
)
def test_a_matmul_goes_on_where_only_dimensions_of_size_1_move(between: Any, expected: str) -> None:
    def fn(query: Any, key: Any) -> Any:
        return jax.nn.softmax(between(scores(query, key)))

    assert written(fn) == expected
