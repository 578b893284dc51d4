"""Ragged matmuls: rows sorted by group, which meet the matrices of all groups."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from autoshard.planning.solution import Solution
from tests.planner.graphs import beside_arguments, plan
from tests.planner.traced import exported

ROWS, FEATURES, COLUMNS = 512, 128, 16


def planned(
    hardware: str, groups: int = 8, *, with_gradient: bool = False, columns: int = COLUMNS
) -> Solution:
    """A ragged matmul of a tanh."""

    def product(rows: Any, matrices: Any, sizes: Any) -> Any:
        return jax.lax.ragged_dot(jnp.tanh(rows), matrices, sizes)

    def fn(rows: Any, matrices: Any, sizes: Any) -> Any:
        made = product(rows, matrices, sizes)
        if not with_gradient:
            return made
        return jax.grad(lambda one: (product(rows, one, sizes) * made).sum())(matrices)

    arguments = (
        jax.ShapeDtypeStruct((ROWS, FEATURES), jnp.float32),
        jax.ShapeDtypeStruct((groups, FEATURES, columns), jnp.float32),
        jax.ShapeDtypeStruct((groups,), jnp.int32),
    )
    graph, wishes = exported(
        fn, *arguments, mesh="x=2", in_shardings=(P(), P(), P()), out_shardings=P()
    )
    return plan(graph, "x=2", wishes, None, hardware)


@pytest.mark.usefixtures("nothing_lost_on_gpus")
@pytest.mark.parametrize(("with_gradient", "copies"), [(False, 1), (True, 2)])
def test_masked_rows_are_held_once_for_each_group_but_not_on_a_tpu(
    *, with_gradient: bool, copies: int
) -> None:
    """A product and its gradient hold masked rows each: 2.1 times, as compiled for 2 H100."""
    masked = 8 * ROWS * FEATURES * 4
    on_gpu = beside_arguments(planned("h100", with_gradient=with_gradient))
    assert copies * masked < on_gpu < (copies + 1) * masked
    assert beside_arguments(planned("tpu-v5p", with_gradient=with_gradient)) < masked / 2


def test_on_a_tpu_twice_the_groups_take_four_times_as_long() -> None:
    few, many = (
        planned("tpu-v5e", groups, columns=1024).account.compute_seconds for groups in (16, 32)
    )
    assert 3.5 < many / few < 4.5


def test_rows_of_a_ragged_result_fill_whole_lanes() -> None:
    """libtpu 0.0.52 says 322 million cycles for 176 columns as for 256, and 176 for 64 and 128."""
    narrow, wide = (
        planned("tpu-v5e", columns=columns).account.compute_seconds for columns in (64, 128)
    )
    assert 0.9 < narrow / wide <= 1.0


@pytest.mark.parametrize("hardware", ["tpu-v4", "tpu-v5p"])
def test_on_a_chip_of_two_cores_rows_meet_the_matrices_of_their_groups_alone(hardware: str) -> None:
    few, many = (
        seconds(matrix_product, hardware, num_groups, rows=65_536) for num_groups in (16, 32)
    )
    assert many < 1.2 * few


def test_the_gradient_of_matrices_takes_its_pairs_of_groups() -> None:
    """8,623,445 cycles at 1.5 GHz, as libtpu 0.0.52 estimates it for a v5e."""

    def gradient(rows: Any, matrices: Any, sizes: Any) -> Any:
        made = jax.vjp(lambda one: matrix_product(rows, one, sizes), matrices)
        return made[1](jnp.ones(made[0].shape, made[0].dtype))

    assert seconds(gradient, "tpu-v5e", 32, rows=8192) == pytest.approx(8_623_445 / 1.5e9, rel=0.2)


def matrix_product(rows: Any, matrices: Any, sizes: Any) -> Any:
    return jax.lax.ragged_dot(rows, matrices, sizes)


def seconds(fn: Any, hardware: str, num_groups: int, *, rows: int) -> float:
    """Of bfloat16[rows, 512] by so many matrices of 512 columns, on one device."""
    arguments = (
        jax.ShapeDtypeStruct((rows, 512), jnp.bfloat16),
        jax.ShapeDtypeStruct((num_groups, 512, 512), jnp.bfloat16),
        jax.ShapeDtypeStruct((num_groups,), jnp.int32),
    )
    graph, wishes = exported(fn, *arguments, mesh="x=1")
    return plan(graph, "x=1", wishes, None, hardware).account.compute_seconds
