"""Seconds of one op: arithmetic, memory, padding, dtypes."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models import (
    CATALOG,
    OP_CLASSES,
    CostModelError,
    Hardware,
    dtype_family,
    get_hardware,
    matmul_tile_efficiency,
    op_seconds,
)

V5E = get_hardware("tpu-v5e")
LAUNCH = V5E.compute.kernel_launch_seconds
amounts = st.floats(0, 1e18)


def seconds(
    flops: float, bytes_accessed: float, dtype: str = "bf16", op_class: str = "matmul"
) -> float:
    return op_seconds(
        V5E, flops=flops, bytes_accessed=bytes_accessed, dtype=dtype, op_class=op_class
    )


def test_a_large_matmul_runs_at_the_peak_of_its_dtype() -> None:
    assert seconds(197e12, 1e9) == pytest.approx(1.0 + LAUNCH)
    assert seconds(393e12, 1e9, dtype="int8") == pytest.approx(1.0 + LAUNCH)


def test_an_elementwise_op_runs_at_its_share_of_the_memory() -> None:
    assert V5E.memory.streamed is not None
    share = V5E.memory.streamed.elementwise
    assert seconds(1e9, share * 819e9, op_class="elementwise") == pytest.approx(1.0 + LAUNCH)
    whole = replace(V5E, memory=replace(V5E.memory, streamed=None))
    for op_class in ("elementwise", "reduce", "copy", "convert", "fill", "matmul"):
        alone = op_seconds(whole, flops=0.0, bytes_accessed=819e9, dtype="f32", op_class=op_class)
        assert alone == pytest.approx(1.0 + LAUNCH)


def test_scattered_accesses_reach_less_of_the_memory() -> None:
    contiguous = seconds(0.0, 819e9, op_class="elementwise")
    assert seconds(0.0, 819e9, op_class="gather") > contiguous
    assert seconds(0.0, 819e9, op_class="scatter") > seconds(0.0, 819e9, op_class="gather")


def test_what_nothing_is_computed_with_is_slower_than_what_is_computed_together() -> None:
    for machine in (V5E, get_hardware("tpu-v5p")):
        took = {
            op_class: op_seconds(
                machine, flops=0.0, bytes_accessed=1e9, dtype="f32", op_class=op_class
            )
            for op_class in ("elementwise", "copy", "convert", "fill")
        }
        assert took["elementwise"] < took["copy"] <= took["convert"] <= took["fill"] * 1.1


def test_what_compilers_remove_is_free() -> None:
    assert seconds(1e12, 1e12, op_class="nothing") == 0.0


@pytest.mark.parametrize("op_class", OP_CLASSES)
def test_an_op_that_does_nothing_costs_nothing(op_class: str) -> None:
    assert seconds(0.0, 0.0, op_class=op_class) == 0.0


@pytest.mark.parametrize(
    ("matmul_dims", "tile", "efficiency"),
    [
        ((128, 128, 128), (8, 128, 128), 1.0),
        ((1024, 512, 256), (8, 128, 128), 1.0),
        ((1, 128, 128), (8, 128, 128), 1 / 8),
        ((128, 1, 128), (8, 128, 128), 1 / 8),  # the operands change places
        ((8, 64, 128), (8, 128, 128), 1 / 2),
        ((8, 128, 130), (8, 128, 128), 130 / 256),
        ((17, 16, 16), (16, 16, 16), 17 / 32),
        ((3, 5, 7), (1, 1, 1), 1.0),
    ],
)
def test_padding_to_whole_tiles_is_paid_for(
    matmul_dims: tuple[int, int, int], tile: tuple[int, int, int], efficiency: float
) -> None:
    assert matmul_tile_efficiency(matmul_dims, tile) == pytest.approx(efficiency)


def test_operands_that_keep_their_places_may_waste_more() -> None:
    dims, tile = (1024, 64, 64), (8, 128, 128)
    assert matmul_tile_efficiency(dims, tile) == pytest.approx(1 / 2)
    assert matmul_tile_efficiency(dims, tile, may_turn=False) == pytest.approx(1 / 4)


def test_local_products_may_be_arrays() -> None:
    dims = np.array([[1.0, 128, 17], [128.0, 1, 16], [128.0, 128, 16]])
    found = matmul_tile_efficiency((dims[0], dims[1], dims[2]), (8, 128, 16))
    one_by_one = [matmul_tile_efficiency((m, n, k), (8, 128, 16)) for m, n, k in dims.T]
    np.testing.assert_allclose(found, one_by_one)
    with pytest.raises(CostModelError, match="has none to compute"):
        matmul_tile_efficiency((np.array([1.0, 0.0]), np.ones(2), np.ones(2)), (8, 128, 16))


def test_a_ragged_matmul_takes_longer() -> None:
    ragged = op_seconds(
        V5E,
        flops=197e12,
        bytes_accessed=0.0,
        dtype="bf16",
        op_class="matmul",
        matmul_dims=(8, 64, 128),
    )
    assert ragged == pytest.approx(2.0 + LAUNCH)


@pytest.mark.parametrize(
    ("dtype", "family"),
    [
        ("float32", "float32"),
        ("f32", "float32"),
        ("complex64", "float32"),
        ("complex<f64>", "float64"),
        ("bf16", "bfloat16"),
        ("f16", "float16"),
        ("f8E4M3FN", "float8"),
        ("f8E4M3B11FNUZ", "float8"),
        ("float8_e5m2", "float8"),
        ("float4_e2m1fn", "float8"),
        ("i1", "int8"),
        ("bool", "int8"),
        ("ui8", "int8"),
        ("uint4", "int8"),
        ("s8", "int8"),
        ("i32", "float32"),
        ("uint32", "float32"),
        ("si64", "float32"),
        ("key<fry>", "float32"),
    ],
)
def test_a_dtype_has_a_family_in_every_spelling(dtype: str, family: str) -> None:
    assert dtype_family(dtype) == family


@pytest.mark.parametrize("family", [field.name for field in fields(V5E.compute.matmul)])
def test_a_family_is_named_by_its_own_name_too(family: str) -> None:
    assert dtype_family(family) == family


def test_unknown_names_are_refused_with_those_known() -> None:
    with pytest.raises(CostModelError, match='"float31" is not the name of a dtype'):
        seconds(1.0, 1.0, dtype="float31")
    with pytest.raises(CostModelError) as caught:
        seconds(1.0, 1.0, op_class="matmull")
    assert caught.value.fix == f"write one of {', '.join(OP_CLASSES)}"
    with pytest.raises(CostModelError, match="has none to compute"):
        matmul_tile_efficiency((0, 1, 1), (8, 128, 128))


@pytest.mark.parametrize("amount", [-1.0, float("nan"), float("inf")])
def test_an_impossible_amount_is_refused(amount: float) -> None:
    with pytest.raises(CostModelError, match="flops is"):
        seconds(amount, 1.0)
    with pytest.raises(CostModelError, match="bytes_accessed is"):
        seconds(1.0, amount)


@given(
    hardware=st.sampled_from(CATALOG),
    op_class=st.sampled_from(OP_CLASSES),
    dtype=st.sampled_from(("f64", "f32", "bf16", "f16", "f8E5M2", "i8", "i32")),
    flops=amounts,
    more_flops=amounts,
    accessed=amounts,
    more_accessed=amounts,
)
def test_more_work_never_takes_less_time(
    hardware: Hardware,
    op_class: str,
    dtype: str,
    flops: float,
    more_flops: float,
    accessed: float,
    more_accessed: float,
) -> None:
    less = op_seconds(
        hardware, flops=flops, bytes_accessed=accessed, dtype=dtype, op_class=op_class
    )
    more = op_seconds(
        hardware,
        flops=flops + more_flops,
        bytes_accessed=accessed + more_accessed,
        dtype=dtype,
        op_class=op_class,
    )
    assert 0 <= less <= more


@given(
    matmul_dims=st.tuples(*[st.integers(1, 5000)] * 3),
    tile=st.sampled_from(((8, 128, 128), (16, 16, 16), (1, 1, 1))),
)
def test_a_tile_is_never_more_than_full_and_a_smaller_tile_never_wastes_more(
    matmul_dims: tuple[int, int, int], tile: tuple[int, int, int]
) -> None:
    efficiency = matmul_tile_efficiency(matmul_dims, tile)
    assert 0 < efficiency <= 1
    assert matmul_tile_efficiency(matmul_dims, (1, 1, 1)) == 1.0 >= efficiency


def test_amounts_may_be_arrays() -> None:
    flops = np.array([0.0, 197e12, 1.0])
    accessed = np.array([0.0, 1.0, 819e9])
    expected = [seconds(float(f), float(b)) for f, b in zip(flops, accessed, strict=True)]
    found = op_seconds(V5E, flops=flops, bytes_accessed=accessed, dtype="bf16", op_class="matmul")
    np.testing.assert_allclose(found, expected)
