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
