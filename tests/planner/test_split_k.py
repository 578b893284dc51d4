"""Split-k matmuls of GPUs, whose readers sum the parts."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from autoshard.backends import get_backend
from autoshard.backends.split_k import Products, num_splits
from autoshard.planning.solution import Solution
from tests.planner.graphs import beside_arguments, plan
from tests.planner.traced import exported


def planned(hardware: str, summed: int) -> Solution:
    def fn(left: Any, right: Any) -> Any:
        return jnp.tanh(left.T @ right)

    operand = jax.ShapeDtypeStruct((summed, 512), jnp.float32)
    graph, wishes = exported(
        fn, operand, operand, mesh="x=2", in_shardings=(P(), P()), out_shardings=P()
    )
    return plan(graph, "x=2", wishes, None, hardware)


# As the CUDA plugin 0.10.2 compiles them for an H100.
@pytest.mark.parametrize(
    ("rows", "columns", "summed", "batch", "splits"),
    [
        (1024, 1024, 8192, 1, 2),
        (1024, 4096, 8192, 1, 1),
        (256, 256, 4096, 1, 16),
        (128, 128, 65536, 1, 128),
        (256, 256, 1024, 8, 4),
        (64, 4096, 4096, 1, 8),
        (512, 512, 512, 16, 1),
    ],
)
def test_few_tiles_and_a_long_sum_are_split(
    rows: int, columns: int, summed: int, batch: int, splits: int
) -> None:
    m, n, k, b = (np.array([float(size)]) for size in (rows, columns, summed, batch))
    products = Products(m, n, k, b, operand_bits=(16, 16), result_bits=16)
    assert num_splits(products, get_backend("h100").fusion.split_k) == splits


@pytest.mark.usefixtures("nothing_lost_on_gpus")
def test_parts_of_a_sum_take_memory_on_a_gpu_alone() -> None:
    result = 512 * 512 * 4
    assert beside_arguments(planned("h100", 256)) < 3 * result
    assert beside_arguments(planned("h100", 16384)) > 4 * result
    assert beside_arguments(planned("tpu-v5e", 16384)) < 3 * result
