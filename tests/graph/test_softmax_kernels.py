"""Where a softmax of scores is computed, and what is written for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from autoshard.backends import get_backend
from autoshard.graph.buffers import Buffers, find_buffers
from autoshard.graph.program import Graph, Op
from tests.planner.traced import exported

HEADS = 8
MADE, ROWS, KEPT = "with the matmul", "of its result", "of what it writes for it"


def attention(heads: Callable[[Any, Any], Any], mask: bool = False) -> Callable[..., Any]:
    """Attention whose queries are made by a function of `x` and weights, its keys by a matmul."""

    def program(x: Any, weight: Any, of_key: Any) -> Any:
        key = jnp.einsum("btd,dhe->bthe", x, of_key)
        scores = jnp.einsum("bqhe,bkhe->bhqk", heads(x, weight), key).astype(jnp.float32) * 0.1
        if mask:
            row = scores.shape[-1]
            scores = jnp.where(jnp.tril(jnp.ones((row, row), bool)), scores, -1e9)
        weights = jax.nn.softmax(scores).astype(x.dtype)
        return jnp.einsum("bhqk,bkhe->bqhe", weights, key)

    return program


def planned(program: Any, row: int, head: int, chip: str) -> tuple[Graph, Buffers]:
    x = jax.ShapeDtypeStruct((2, row, 256), jnp.bfloat16)
    weight = jax.ShapeDtypeStruct((256, HEADS, head), jnp.bfloat16)
    graph, _ = exported(program, x, weight, weight, mesh="d=1")
    return graph, find_buffers(graph, get_backend(chip))


def gradient(program: Any, of: Any) -> Any:
    """The gradient of the sum of what a program makes."""
    return jax.grad(lambda *given: program(*given).astype(jnp.float32).sum(), of)


def softmax(program: Any, row: int = 1024, head: int = 128, chip: str = "tpu-v5e") -> str:
    """The kernel in which the softmax of a program is computed."""
    graph, buffers = planned(program, row, head, chip)
    maximum = next(op for op in graph.ops if op.name == "reduce" and not op.is_sum)
    (exponential,) = (op for op in graph.ops if op.name == "exponential")
    is_joined = maximum.index in buffers.joined
    assert buffers.is_stored[exponential.results[0]] is not is_joined
    if is_joined:
        return MADE
    return KEPT if buffers.is_stored[maximum.operands[0]] else ROWS


def made(x: Any, weight: Any) -> Any:
    return jnp.einsum("btd,dhe->bthe", x, weight)


def scaled(x: Any, weight: Any) -> Any:
    return made(x, weight) * 0.5


def in_rows(x: Any, weight: Any) -> Any:
    return (x @ weight.reshape(256, -1)).reshape(*x.shape[:2], HEADS, -1)


def rotated(x: Any, weight: Any) -> Any:
    left, right = jnp.split(made(x, weight), 2, -1)
    return jnp.concatenate([left - right, left + right], -1)


def interleaved(x: Any, weight: Any) -> Any:
    heads = made(x, weight)
    left, right = heads[..., ::2], heads[..., 1::2]
    return jnp.stack([left - right, left + right], -1).reshape(heads.shape)


def normalized(x: Any, weight: Any) -> Any:
    heads = made(x, weight)
    return heads * jax.lax.rsqrt(jnp.mean(jnp.square(heads), -1, keepdims=True))


def shared(x: Any, weight: Any) -> Any:
    return jnp.repeat(made(x, weight)[:, :, :2], HEADS // 2, 2)


def sliced(x: Any, weight: Any) -> Any:
    both = x @ jnp.concatenate([weight, weight], 1).reshape(256, -1)
    return jnp.split(both, 2, -1)[1].reshape(*x.shape[:2], HEADS, -1)


@pytest.mark.parametrize("heads", [made, scaled, in_rows, rotated])
def test_a_matmul_takes_the_softmax_of_heads_that_lie_as_it_reads_them(heads: Any) -> None:
    assert softmax(attention(heads)) == MADE


@pytest.mark.parametrize("heads", [interleaved, normalized, shared, sliced])
def test_of_heads_that_it_brings_into_order_or_computes_another_kernel_does(heads: Any) -> None:
    assert softmax(attention(heads)) == ROWS


@pytest.mark.parametrize(
    ("heads", "expected"), [(sliced, MADE), (normalized, MADE), (shared, ROWS), (interleaved, ROWS)]
)
def test_heads_of_less_than_all_lanes_are_in_order_unless_elements_were_copied_or_mixed(
    heads: Any, expected: str
) -> None:
    assert softmax(attention(heads), head=64) == expected


@pytest.mark.parametrize(
    ("heads", "mask", "row", "expected"),
    [
        (made, False, 2048, MADE),
        (made, False, 4096, KEPT),
        (made, True, 2048, MADE),
        (rotated, True, 2048, KEPT),
        (rotated, True, 1024, MADE),
        (sliced, False, 2048, ROWS),
        (sliced, True, 2048, KEPT),
        (sliced, True, 1024, ROWS),
    ],
)
def test_of_long_rows_the_matmul_writes_what_the_softmax_reads(
    heads: Any, mask: bool, row: int, expected: str
) -> None:
    assert softmax(attention(heads, mask), row) == expected


def split(x: Any, weight: Any) -> Any:
    wide = jnp.concatenate([weight] * 2, 1).reshape(256, -1)  # 2,048 columns
    return (x @ wide).reshape(*x.shape[:2], 2 * HEADS, -1)


@pytest.mark.parametrize(("row", "expected"), [(1024, ROWS), (2048, MADE)])
def test_columns_split_into_heads_are_in_order_where_there_are_no_more_than_rows(
    row: int, expected: str
) -> None:
    def program(x: Any, weight: Any, of_key: Any) -> Any:
        key, value = split(x, of_key), split(x, of_key * 2)
        scores = jnp.einsum("bqhe,bkhe->bhqk", split(x, weight), key).astype(jnp.float32) * 0.1
        return jnp.einsum("bhqk,bkhe->bqhe", jax.nn.softmax(scores).astype(x.dtype), value)

    assert softmax(program, row) == expected


def test_columns_split_into_heads_are_in_order_where_gradients_read_them_too() -> None:
    def program(x: Any, weight: Any, of_key: Any) -> Any:
        queries, keys = split(x, weight), split(x, of_key)
        scores = jnp.einsum("bqhe,bkhe->bhqk", queries, keys).astype(jnp.float32) * 0.1
        weights = jax.nn.softmax(scores).astype(x.dtype)
        made = jnp.einsum("bhqk,bkhe->bqhe", weights, keys)
        return made, jnp.einsum("bqhe,bkhe->bhqk", queries, keys * 2)

    assert softmax(program) == MADE


@pytest.mark.parametrize("is_read", [False, True])
@pytest.mark.parametrize(("dtype", "row"), [("bfloat16", 2048), ("float32", 512)])
@pytest.mark.parametrize(("chip", "reads"), [("tpu-v5e", False), ("tpu-v6e", True)])
def test_a_mask_from_memory_makes_rows_too_long_sooner_on_some_chips(
    chip: str, reads: bool, dtype: str, row: int, is_read: bool
) -> None:
    def program(x: Any, weight: Any, of_key: Any) -> Any:
        causal = jnp.tril(jnp.ones((row, row), bool))
        mask = jax.lax.optimization_barrier(causal & (x[0, :, :1] > 0)) if is_read else causal
        queries, keys = made(x, weight), made(x, of_key)
        scores = jnp.einsum("bqhe,bkhe->bhqk", queries, keys, preferred_element_type=dtype)
        masked = jnp.where(mask, scores.astype(jnp.float32), -1e9)
        return jnp.einsum("bhqk,bkhe->bqhe", jax.nn.softmax(masked).astype(x.dtype), keys)

    assert (softmax(program, row, chip=chip) == MADE) is (reads or not is_read)


@pytest.mark.parametrize("with_gradients", [False, True])
@pytest.mark.parametrize(("chip", "reads_turned"), [("tpu-v5e", False), ("tpu-v6e", True)])
def test_heads_brought_before_rows_are_in_order_on_some_chips_until_gradients_read_them_too(
    chip: str, reads_turned: bool, with_gradients: bool
) -> None:
    def program(x: Any, weight: Any, of_key: Any) -> Any:
        heads = (jnp.einsum("btd,dhe->bhte", x, one) for one in (weight, of_key, of_key * 2))
        queries, keys, values = heads
        scores = jnp.einsum("bhqe,bhke->bhqk", queries, keys).astype(jnp.float32) * 0.1
        weights = jax.nn.softmax(scores).astype(x.dtype)
        return jnp.einsum("bhqk,bhke->bqhe", weights, values)

    _, buffers = planned(gradient(program, (1, 2)) if with_gradients else program, 1024, 128, chip)
    assert bool(buffers.weights) is (with_gradients and not reads_turned)


@pytest.mark.parametrize("row", [1024, 2048])
@pytest.mark.parametrize("with_gradients", [False, True])
def test_heads_sliced_of_joined_columns_are_in_order_where_gradients_read_them(
    row: int, with_gradients: bool
) -> None:
    def program(x: Any, weight: Any, _: Any) -> Any:
        joined = x @ jnp.concatenate([weight, weight * 2, weight * 3], 1).reshape(256, -1)
        parts = jnp.split(joined, 3, -1)
        queries, keys, values = (part.reshape(*x.shape[:2], HEADS, -1) for part in parts)
        scores = jnp.einsum("bqhe,bkhe->bhqk", queries, keys).astype(jnp.float32) * 0.1
        weights = jax.nn.softmax(scores).astype(x.dtype)
        return jnp.einsum("bhqk,bkhe->bqhe", weights, values)

    _, buffers = planned(gradient(program, 1) if with_gradients else program, row, 128, "tpu-v5e")
    assert bool(buffers.weights) is not with_gradients


def test_a_v6e_takes_rows_of_no_mask_twice_as_long_as_masked_ones() -> None:
    assert softmax(attention(made), 4096, chip="tpu-v6e") == MADE
    assert softmax(attention(made, mask=True), 4096, chip="tpu-v6e") != MADE


@pytest.mark.parametrize(
    ("row", "with_gradients", "is_stored"),
    [(1024, False, True), (1024, True, False), (4096, False, False)],
)
def test_short_turned_rows_are_written_unless_gradients_read_them(
    row: int, with_gradients: bool, is_stored: bool
) -> None:
    def program(x: Any, weight: Any, of_key: Any) -> Any:
        queries = made(x, weight).reshape(*x.shape[:2], 2, HEADS // 2, -1)
        keys = made(x, of_key[:, :2])
        scores = jnp.einsum("bqkge,btke->bkgqt", queries, keys).astype(jnp.float32) * 0.1
        weights = jax.nn.softmax(scores).astype(x.dtype)
        return jnp.einsum("bkgqt,btke->bqkge", weights, keys)

    graph, buffers = planned(
        gradient(program, 2) if with_gradients else program, row, 128, "tpu-v5e"
    )
    exponential = next(op for op in graph.ops if op.name == "exponential")
    assert buffers.is_stored[exponential.results[0]] is is_stored


def test_exponentials_that_are_only_summed_are_not_written() -> None:
    def program(x: Any, weight: Any, _: Any) -> Any:
        scores = jnp.einsum("btd,dhe->bhte", x, weight).astype(jnp.float32) * 0.1
        return jnp.exp(scores - jnp.max(scores, -1, keepdims=True)).sum(-1)

    graph, buffers = planned(program, 64, 8192, "tpu-v5e")
    (exponential,) = (op for op in graph.ops if op.name == "exponential")
    assert not buffers.weights
    assert not buffers.is_stored[exponential.results[0]]
    maximum = next(op for op in graph.ops if op.name == "reduce" and not op.is_sum)
    assert not buffers.is_stored[maximum.operands[0]]


def test_nothing_is_written_over_what_a_softmax_reads() -> None:
    graph, buffers = planned(attention(sliced, mask=True), 2048, 128, "tpu-v5e")
    (weights,) = buffers.weights
    maximum: Op = graph.ops[buffers.weights[weights]]
    read = buffers.owner[maximum.operands[0]]
    assert buffers.intervals[read][1] > buffers.intervals[weights][0]
