"""Values that products write in the place of their results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from autoshard.backends import get_backend
from autoshard.graph.product_writes import written_by_products
from autoshard.graph.program import Graph
from tests.planner.traced import exported

HEADS = jax.ShapeDtypeStruct((4, 2, 64, 32), jnp.bfloat16)
TPU = get_backend("tpu-v5e")


def by_value(graph: Graph) -> Mapping[int, int]:
    return written_by_products(graph, TPU.fusion, TPU.layout.num_lanes).by_value


def written(fn: Any) -> str:
    """The op whose result the first matmul writes."""
    graph, _ = exported(fn, HEADS, HEADS, mesh="x=2")
    product = next(op for op in graph.ops if op.name == "dot_general")
    made = product.results[0]
    return graph.maker(by_value(graph).get(made, made)).name


def scores(query: Any, key: Any) -> Any:
    return jnp.einsum("bhqd,bhkd->bhqk", query, key, preferred_element_type=jnp.float32)


@pytest.mark.parametrize(
    ("between", "expected"),
    [
        (lambda made: made * 2.0, "multiply"),
        (lambda made: (made * 2.0)[None, :, :, :, :], "reshape"),
        (lambda made: jnp.moveaxis((made * 2.0)[:, :, None], 2, 0) + 1.0, "add"),
        (lambda made: jnp.swapaxes(made * 2.0, 1, 2) + 1.0, "add"),
        (lambda made: jnp.swapaxes(made * 2.0, 1, 2), "multiply"),
    ],
)
def test_a_matmul_goes_on_in_any_order_of_dimensions(between: Any, expected: str) -> None:
    def fn(query: Any, key: Any) -> Any:
        return jax.nn.softmax(between(scores(query, key)))

    assert written(fn) == expected


def test_a_matmul_takes_scores_of_grouped_heads_along_their_rows() -> None:
    """Those of several queries per key head come in another order than a softmax reads them."""

    def fn(query: Any, key: Any) -> Any:
        made = jnp.einsum("bqkgd,bskd->bkgqs", query, key).astype(jnp.float32)
        return jax.nn.softmax(made * 0.1)

    query = jax.ShapeDtypeStruct((2, 64, 4, 2, 32), jnp.bfloat16)
    key = jax.ShapeDtypeStruct((2, 64, 4, 32), jnp.bfloat16)
    graph, _ = exported(fn, query, key, mesh="x=2")
    product = next(op for op in graph.ops if op.name == "dot_general")
    after = graph.ops[graph.consumers[product.results[0]][0]]
    assert after.name == "transpose"
    kept = graph.maker(by_value(graph)[product.results[0]])
    assert (kept.name, graph.values[kept.results[0]].bits) == ("multiply", 32)


@pytest.mark.parametrize("scale", [1.0, 0.5], ids=["converted", "scaled"])
def test_a_matmul_writes_narrow_what_its_kernel_sums_for_a_normalization(scale: float) -> None:
    def fn(rows: Any, weights: Any) -> Any:
        wide = (rows @ weights).astype(jnp.float32) * scale
        centred = wide - wide.mean(-1, keepdims=True)
        return (centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True))).sum()

    shapes = ((256, 512), (512, 128))
    arguments = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes)
    graph, _ = exported(fn, *arguments, mesh="x=2")
    product = next(op for op in graph.ops if op.name == "dot_general")
    assert by_value(graph)[product.results[0]] == product.results[0]
