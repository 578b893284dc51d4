"""Operands that several matmuls compute each, or that are stored for them."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest

from autoshard.backends import backend_for
from autoshard.graph.buffers import find_buffers
from cost_models import get_hardware
from tests.planner.traced import exported


def _stores(
    machine: str,
    make: Callable[[jax.Array, jax.Array, jax.Array], jax.Array],
    columns: int = 128,
    dtype: str = "bfloat16",
    num_readers: int = 2,
) -> bool:
    """True where a TPU stores what is made of two tensors and a row for several matmuls."""

    def program(
        a: jax.Array, b: jax.Array, row: jax.Array, right: jax.Array, left: jax.Array
    ) -> tuple[jax.Array, ...]:
        wide = make(a.astype(jnp.float32), b.astype(jnp.float32), row)
        made = wide.astype(jnp.bfloat16)
        return (made.T @ left, *(made @ (right * place) for place in range(1, num_readers)))

    square = jax.ShapeDtypeStruct((2048, 2048), dtype)
    half = jax.ShapeDtypeStruct((2048, columns), "bfloat16")
    row = jax.ShapeDtypeStruct((2048, 1), "float32")
    graph, _ = exported(program, square, square, row, half, half, mesh="x=2")
    buffers = find_buffers(graph, backend_for(get_hardware(machine)))
    return any(
        buffers.is_stored[value]
        for op in graph.ops
        for value in op.results
        if op.name == "convert" and graph.values[value].bits == 16
    )


def _chain(length: int) -> Callable[[jax.Array, jax.Array, jax.Array], jax.Array]:
    """Sums and products, one after the other, as in the probe of `recomputed_ops`."""

    def make(a: jax.Array, b: jax.Array, row: jax.Array) -> jax.Array:
        for step in range(length):
            a = a * b if step % 2 else a + row
        return a

    return make


@pytest.mark.parametrize(
    ("machine", "most"), [("tpu-v5e", 24), ("tpu-v6e", 11), ("tpu-v5p", 7), ("tpu-v4", 4)]
)
def test_matmuls_compute_as_many_operations_again_as_the_probe_found(
    machine: str, most: int
) -> None:
    assert not _stores(machine, _chain(most))
    assert _stores(machine, _chain(most + 2))


def test_one_matmul_computes_all_of_its_operand() -> None:
    assert not _stores("tpu-v5p", _chain(40), num_readers=1)


def test_a_wider_matmul_computes_more_again() -> None:
    # libtpu 0.0.52 for a v5e: 24 operations before 128 columns, 37 before 1,024.
    assert _stores("tpu-v5e", _chain(33))
    assert not _stores("tpu-v5e", _chain(33), columns=1024)


def _stores_wide(machine: str, length: int, dtype: str, *, with_row: bool = True) -> bool:
    """True where a TPU stores, in float32 or less, what two matmuls read of two tensors."""

    def program(
        a: jax.Array, b: jax.Array, row: jax.Array, right: jax.Array
    ) -> tuple[jax.Array, ...]:
        wide = b.astype(jnp.float32)
        made = _chain(length)(a, wide, row if with_row else wide).astype(dtype)
        return made.T @ right.astype(dtype), made @ right.astype(dtype)

    square = jax.ShapeDtypeStruct((2048, 2048), "float32")
    narrow = jax.ShapeDtypeStruct((2048, 2048), "bfloat16")
    row = jax.ShapeDtypeStruct((2048, 1), "float32")
    right = jax.ShapeDtypeStruct((2048, 64), "bfloat16")
    graph, _ = exported(program, square, narrow, row, right, mesh="x=2")
    buffers = find_buffers(graph, backend_for(get_hardware(machine)))
    (made,) = {
        op.operands[0]
        for op in graph.ops
        if op.name == "dot_general" and graph.maker(op.operands[0]).name != "transpose"
    }
    return buffers.is_stored[made]


@pytest.mark.parametrize(("machine", "most"), [("tpu-v5p", 19), ("tpu-v5e", 40)])
def test_what_float32_and_bfloat16_make_in_float32_is_computed_again(
    machine: str, most: int
) -> None:
    # The most operations that libtpu 0.0.52 computes again; of the last one it was asked no more.
    assert not _stores_wide(machine, most - 2, "float32")
    if most < 40:
        assert _stores_wide(machine, most + 2, "float32")


@pytest.mark.parametrize(("machine", "most"), [("tpu-v5e", 15), ("tpu-v5p", 4)])
def test_a_kernel_weighs_where_as_many_bytes_are_moved_either_way(machine: str, most: int) -> None:
    # The most operations of float32 and bfloat16 that libtpu 0.0.52 computes again in bfloat16;
    # with a row beside them two matmuls would read more than is written and read, and it stores.
    assert not _stores_wide(machine, most - 1, "bfloat16", with_row=False)
    assert _stores_wide(machine, most + 2, "bfloat16", with_row=False)
    assert _stores_wide(machine, 2, "bfloat16")


def test_what_would_be_read_more_often_than_written_and_read_is_stored() -> None:
    # Two tensors in float32 are 16 bytes for two matmuls, and 14 with what is made of them stored.
    assert _stores("tpu-v5e", _chain(2), dtype="float32")


@pytest.mark.parametrize(("machine", "is_stored"), [("tpu-v5e", False), ("tpu-v5p", True)])
def test_a_division_weighs_as_much_as_it_costs(machine: str, *, is_stored: bool) -> None:
    assert _stores(machine, lambda a, b, _: a / b) == is_stored
    assert not _stores(machine, lambda a, b, _: a / 3 + b)


@pytest.mark.parametrize(
    ("quantize", "is_stored"),
    [
        (lambda x: (2 * x).astype(jnp.float8_e4m3fn), True),
        (lambda x: jnp.clip(x, -8, 7).astype(jnp.int4), True),
        (lambda x: x.astype(jnp.int8), False),  # a bare conversion
        (lambda x: (2 * x).astype(jnp.int16), False),
        (lambda x: x.astype(jnp.int8) + 1, False),  # arithmetic of few bits
        (lambda x: x > 0, False),
    ],
)
def test_a_quantized_operand_is_stored_for_a_single_matmul(
    quantize: Callable[[jax.Array], jax.Array], is_stored: bool
) -> None:
    """Source: the same programs by libtpu 0.0.52 for v4, v5e, v5p, v6e and TPU7x."""

    def program(x: jax.Array, weight: jax.Array) -> jax.Array:
        return (quantize(x).astype(jnp.bfloat16) * 3) @ weight

    assert _stores_few_bits(program) is is_stored


def test_what_only_element_wise_ops_read_is_not_stored_for_its_few_bits() -> None:
    def program(x: jax.Array, weight: jax.Array) -> jax.Array:
        return (2 * x).astype(jnp.float8_e4m3fn).astype(jnp.bfloat16) + weight

    assert not _stores_few_bits(program)


def test_a_quantization_of_a_quantized_tensor_is_stored_alone() -> None:
    """Source: the same program by libtpu 0.0.52 for a v5e."""

    def few(x: jax.Array) -> jax.Array:
        return (2 * x).astype(jnp.int8).astype(jnp.bfloat16)

    assert _num_stored(lambda x, weight: few(few(x) + 1) @ weight) == 1


def _stores_few_bits(program: Callable[..., jax.Array]) -> bool:
    return _num_stored(program) > 0


def _num_stored(program: Callable[..., jax.Array]) -> int:
    """Buffers of a v5e with elements of at most 16 bits that are no bfloat16."""
    square = jax.ShapeDtypeStruct((512, 512), "bfloat16")
    graph, _ = exported(program, square, square, mesh="x=2")
    buffers = find_buffers(graph, backend_for(get_hardware("tpu-v5e")))
    return sum(
        buffers.is_stored[value]
        for op in graph.ops
        for value in op.results
        if op.name in ("convert", "compare", "add") and graph.values[value].dtype != "bf16"
    )
