"""Kernels that sums over pieces of rows take on TPUs, as libtpu 0.0.52 makes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from autoshard.graph.piece_sums import kernels_of_piece_sums
from tests.planner.graphs import plan
from tests.planner.traced import exported


def normalized(groups: int) -> Callable[[Any], Any]:
    def program(x: Any) -> Any:
        pieces = x.reshape(8, 16, 16, groups, -1).astype(jnp.float32)
        mean = pieces.mean((1, 2, 4), keepdims=True)
        variance = jnp.square(pieces - mean).mean((1, 2, 4), keepdims=True)
        return ((pieces - mean) * jax.lax.rsqrt(variance + 1e-5)).reshape(x.shape)

    return program


@pytest.mark.parametrize(
    ("program", "channels", "kernels"),
    [
        (normalized(8), 128, [5, 5]),
        (normalized(32), 512, [5, 5]),
        (normalized(8), 1024, [2, 2]),  # pieces of whole tiles
        (normalized(1), 128, []),  # no pieces: the dimension before is of size 1
        (lambda x: jnp.square(x.reshape(8, 16, 16, 8, -1)).sum((1, 2, 4)), 128, [2]),
        (lambda x: x.reshape(8, 16, 16, 8, -1).sum((1, 2)), 128, []),
        (lambda x: x.sum((1, 2)), 128, []),
        (lambda x: (x * 2).sum((1, 3)), 128, []),  # the row is no piece of another
    ],
)
def test_sums_of_pieces_take_the_kernels_that_are_compiled(
    program: Callable[[Any], Any], channels: int, kernels: list[int]
) -> None:
    image = jax.ShapeDtypeStruct((8, 16, 16, channels), jnp.bfloat16)
    graph, _ = exported(program, image, mesh="x=1")
    assert list(kernels_of_piece_sums(graph, 128).values()) == kernels
    assert not kernels_of_piece_sums(graph, 1)


@pytest.mark.parametrize(("hardware", "launches"), [("tpu-v5p", 10), ("h100", 0)])
def test_each_takes_a_launch(hardware: str, launches: int) -> None:
    def seconds(groups: int) -> float:
        image = jax.ShapeDtypeStruct((8, 16, 16, 128), jnp.bfloat16)
        graph, wishes = exported(normalized(groups), image, mesh="x=1")
        return plan(graph, "x=1", wishes, None, hardware).account.compute_seconds

    assert seconds(8) - seconds(1) == pytest.approx(launches * 1.2e-6, abs=0.4e-6)
