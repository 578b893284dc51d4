"""Random bits and masks: every kernel that reads them makes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard.graph.made_work import made_operations
from autoshard.graph.program import OpKind
from tests.planner.traced import exported

ROWS = jax.ShapeDtypeStruct((64, 1024), jnp.float32)
KEY = jax.ShapeDtypeStruct((2,), jnp.uint32)
ELEMENTS = 64 * 1024


def dropped(x: Any, key: Any) -> Any:
    kept = jax.random.bernoulli(jax.random.wrap_key_data(key), 0.9, x.shape)
    return jnp.where(kept, x / 0.9, 0.0)


def masked(x: Any, _key: Any) -> Any:
    return jnp.where(jnp.arange(1024) < 512, x, 0.0)


def plain(x: Any, _key: Any) -> Any:
    return x / 0.9


def operations(program: Callable[..., Any]) -> float:
    graph, _ = exported(program, ROWS, KEY, mesh="x=1")
    return sum(made_operations(graph, op) for op in graph.ops if op.kind is OpKind.COMPUTE)


def test_random_bits_are_some_130_operations_an_element() -> None:
    assert 110 < operations(dropped) / ELEMENTS < 150


def test_a_mask_is_few() -> None:
    assert 0 < operations(masked) <= 2 * ELEMENTS
    assert operations(plain) == 0


@pytest.mark.parametrize("hardware", ["tpu-v5e", "tpu-v5p"])
def test_dropout_takes_longer_than_its_bytes(hardware: str) -> None:
    def seconds(program: Callable[..., Any], rows: int) -> float:
        x = jax.ShapeDtypeStruct((rows, 1024), jnp.float32)
        return autoshard.optimize(
            program, x, KEY, mesh="x=8", hardware=hardware, baselines=False
        ).data.compute_seconds

    rows = 65536
    assert seconds(dropped, rows) > 2 * seconds(plain, rows)
    assert seconds(masked, rows) == pytest.approx(seconds(plain, rows), rel=0.02)
