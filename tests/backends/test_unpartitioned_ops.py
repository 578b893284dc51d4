"""Ops that the partitioner runs whole on every device are planned so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import autoshard
from autoshard.hlo.compiled import compare_collectives, read_compiled

CUBE = jax.ShapeDtypeStruct((32, 32, 64), np.dtype(np.float32))


@pytest.mark.parametrize("transform", [jnp.fft.fft, jnp.fft.fft2, jnp.fft.rfft])
def test_a_fourier_transform_is_gathered_as_xla_does(transform: Callable[..., Any]) -> None:
    plan = autoshard.optimize(
        lambda x: jnp.abs(transform(x)),
        CUBE,
        mesh="data=2,model=4",
        hardware="cpu-host",
        in_shardings=P("data"),
    )
    compiled = plan.jit().lower(CUBE).compile()
    real = read_compiled(compiled, plan.data.mesh).collectives
    found = compare_collectives(plan.data.collectives, real)
    assert found.predicted_bytes > 0
    assert found.predicted_bytes == found.compiled_bytes
