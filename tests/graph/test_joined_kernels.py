"""Ops that run in the kernel of another one, and do not read or write again what that has."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from autoshard.backends import get_backend
from autoshard.graph.buffers import Buffers, find_buffers
from autoshard.graph.program import Graph
from tests.planner.traced import exported

TPU = get_backend("tpu-v5e")
LONGEST = TPU.fusion.softmax_rows[0]


def found(
    function: Any, *shapes: tuple[int, ...], backend: str = "tpu-v5e"
) -> tuple[Graph, Buffers]:
    arguments = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]
    graph, _ = exported(function, *arguments, mesh="x=1")
    return graph, find_buffers(graph, get_backend(backend))


def joined(function: Any, *shapes: tuple[int, ...], backend: str = "tpu-v5e") -> list[str | None]:
    """By reduction in program order, the name of the op whose kernel it runs in."""
    graph, buffers = found(function, *shapes, backend=backend)
    kernels = [buffers.joined.get(op.index) for op in graph.ops if op.name == "reduce"]
    return [None if kernel is None else graph.ops[kernel].name for kernel in kernels]


def moments(x: Any, weight: Any) -> Any:
    made = (x @ weight).astype(jnp.float32)
    mean = jnp.mean(made, axis=-1, keepdims=True)
    return mean, jnp.sum(jnp.square(made - mean), axis=-1)


def test_a_mean_runs_with_its_matmul_and_the_variance_that_waits_for_it_does_not() -> None:
    assert joined(moments, (256, 512), (512, 512)) == ["dot_general", None]


def test_on_a_gpu_neither_does() -> None:
    assert joined(moments, (256, 512), (512, 512), backend="h100") == [None, None]


def normalization_gradient(x: Any, y: Any, weight: Any, scale: Any) -> Any:
    gradient = (y @ weight).astype(jnp.float32)
    wide = x.astype(jnp.float32)
    return jnp.sum(gradient * wide, axis=0), jnp.sum(gradient * scale * wide, axis=-1)


def test_sums_over_rows_and_columns_run_with_a_matmul_whatever_else_they_read() -> None:
    shapes = ((256, 512), (256, 512), (512, 512), (512,))
    assert joined(normalization_gradient, *shapes) == ["dot_general", "dot_general"]


def softmax(query: Any, key: Any) -> Any:
    scores = (query @ key.T).astype(jnp.float32) * 0.1
    weights = jnp.exp(scores - jnp.max(scores, axis=-1, keepdims=True))
    return jnp.sum(weights, axis=-1)


@pytest.mark.parametrize(
    ("row", "kernels"),
    [(LONGEST, ["dot_general", "dot_general"]), (2 * LONGEST, [None, "reduce"])],
)
def test_a_softmax_runs_with_its_matmul_where_its_rows_are_short(
    row: int, kernels: list[str | None]
) -> None:
    assert joined(softmax, (256, 64), (row, 64)) == kernels


def narrow_softmax(query: Any, key: Any) -> Any:
    scores = query @ key.T
    weights = jnp.exp(scores - jnp.max(scores, axis=-1, keepdims=True))
    return jnp.sum(weights.astype(jnp.float32), axis=-1)


def grouped_softmax(query: Any, key: Any) -> Any:
    scores = jnp.einsum("bqgd,bkd->bgqk", query, key).astype(jnp.float32) * 0.1
    weights = jnp.exp(scores - jnp.max(scores, axis=-1, keepdims=True))
    return jnp.sum(weights, axis=-1)


def test_the_sum_of_a_softmax_of_narrow_scores_has_a_kernel_of_its_own() -> None:
    assert joined(narrow_softmax, (256, 64), (512, 64)) == ["dot_general", None]


def test_scores_of_grouped_heads_are_written_in_the_order_that_the_softmax_reads() -> None:
    shapes = ((2, 512, 2, 64), (2, 512, 64))
    assert joined(grouped_softmax, *shapes) == ["dot_general", "dot_general"]


def grouped_gradient(query: Any, key: Any) -> Any:
    made, back = jax.vjp(grouped_softmax, query, key)
    return back(jnp.tanh(made))


def test_unless_their_gradient_is_turned_back() -> None:
    shapes = ((2, 512, 2, 64), (2, 512, 64))
    assert joined(grouped_gradient, *shapes)[:2] == ["dot_general", None]


def test_reductions_of_the_same_tensor_are_one_kernel() -> None:
    def sums(x: Any) -> Any:
        wide = x.astype(jnp.float32)
        return jnp.sum(wide, axis=-1), jnp.sum(jnp.square(wide), axis=-1)

    assert joined(sums, (256, 512)) == [None, "reduce"]


def operands_beside(a: Any, b: Any, weight: Any, rows: Any, *, is_summed_first: bool) -> Any:
    wide = jax.lax.erf(a.astype(jnp.float32)) * jax.lax.erf(b.astype(jnp.float32))
    total = jnp.sum(wide, axis=0) if is_summed_first else None
    made = wide.astype(jnp.bfloat16)
    products = made @ weight, made.T @ rows
    return products, jnp.sum(wide, axis=0) if total is None else total


@pytest.mark.parametrize("is_summed_first", [False, True])
def test_what_matmuls_read_is_written_by_the_kernel_that_reduces_the_same_tensors(
    *, is_summed_first: bool
) -> None:
    """Source: the same programs in float32[8192, 4096] by libtpu 0.0.52 for a v5e."""
    shapes = ((512, 512), (512, 512), (512, 128), (512, 128))
    function = partial(operands_beside, is_summed_first=is_summed_first)
    graph, buffers = found(function, *shapes)
    (total,) = (op for op in graph.ops if op.name == "reduce")
    made = next(op for op in graph.ops if op.name == "convert" and buffers.is_stored[op.results[0]])
    first, second = sorted((total.index, made.index))
    assert buffers.joined == {second: first}
    assert not any(read.num_bytes for read in buffers.reads[second])


def test_unless_one_waits_for_the_other() -> None:
    def variance(x: Any) -> Any:
        wide = x.astype(jnp.float32)
        mean = jnp.sum(wide, axis=-1, keepdims=True)
        return mean, jnp.sum(jnp.square(wide - mean), axis=-1)

    assert joined(variance, (256, 512)) == [None, None]


def kept_maximum(query: Any, key: Any) -> Any:
    scores = (query @ key.T).astype(jnp.float32) * 0.1
    largest = jnp.max(scores, axis=-1, keepdims=True)
    return largest, jnp.sum(jnp.exp(scores - largest), axis=-1)


def test_but_the_sum_waits_for_a_maximum_that_others_read() -> None:
    assert joined(kept_maximum, (256, 64), (512, 64)) == ["dot_general", None]


def residual(num_readers: int) -> Any:
    """Two normalized values added up; the sum of squares, and so many matmuls, need it."""

    def program(x: Any, y: Any, scale: Any, weight: Any) -> Any:
        made = jnp.sin(x) * jnp.sin(y)
        squares = jnp.sum(jnp.square(made), axis=-1)
        return squares, *((made * scale) @ (weight * n) for n in range(num_readers))

    return program


@pytest.mark.parametrize(("num_readers", "is_stored"), [(1, False), (2, True)])
def test_what_a_sum_computes_is_written_where_others_would_read_more(
    num_readers: int, is_stored: bool
) -> None:
    graph, buffers = found(residual(num_readers), (256, 512), (256, 512), (512,), (512, 512))
    made = next(op for op in graph.ops if op.name == "multiply")
    assert buffers.is_stored[made.results[0]] == is_stored


def narrowed(x: Any, y: Any, z: Any, weight: Any) -> Any:
    """A sum of what is computed from three tensors; three matmuls read that narrower."""
    made = jnp.sin(x) * jnp.sin(y).astype(jnp.float32) * jnp.sin(z)
    narrow = made.astype(jnp.bfloat16)
    return jnp.sum(made, axis=0), *(narrow @ (weight * n) for n in range(3))


def test_matmuls_that_read_one_narrower_value_need_a_sum_of_it_once() -> None:
    graph, buffers = found(narrowed, (256, 512), (256, 512), (256, 512), (512, 512))
    products = [op for op in graph.ops if op.name == "dot_general"]
    narrow = products[0].operands[0]
    (made,) = graph.maker(narrow).operands
    assert buffers.is_stored[narrow]
    assert not buffers.is_stored[made]


def softmax_gradient(query: Any, key: Any, value: Any, given: Any, *, waits: bool) -> Any:
    """Attention computed again for its gradient, of what is given or of its own result."""
    scores = (query @ key.T).astype(jnp.float32)
    weights = jnp.exp(scores - jnp.max(scores, axis=-1, keepdims=True))
    weights = weights / jnp.sum(weights, axis=-1, keepdims=True)
    narrow = weights.astype(jnp.bfloat16)
    made = narrow @ value
    of_made = jnp.tanh(made) if waits else given
    of_weights = (of_made @ value.T).astype(jnp.float32)
    mean = jnp.sum(of_weights * weights, axis=-1, keepdims=True)
    of_scores = (weights * (of_weights - mean)).astype(jnp.bfloat16)
    return made, narrow.T @ of_made, of_scores @ key, of_scores.T @ query


@pytest.mark.parametrize("waits", [False, True])
def test_weights_computed_again_run_with_the_matmul_of_their_gradient_unless_that_waits(
    *, waits: bool
) -> None:
    function = partial(softmax_gradient, waits=waits)
    graph, buffers = found(function, *[(2048, 128)] * 4, backend="tpu-v5p")
    later = {op: kernel for op, kernel in buffers.joined.items() if kernel > op}
    products = [op.index for op in graph.ops if op.name == "dot_general"]
    if waits:
        assert not later
    else:
        ((weights, kernel),) = later.items()
        assert graph.ops[weights].name == "convert"
        assert buffers.is_stored[graph.ops[weights].results[0]]
        assert kernel == products[2], "after the scores and what is made of the values"
