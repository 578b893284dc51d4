"""Programs that change one element of an array."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autoshard


@pytest.mark.parametrize("hardware", ["tpu-v5e", "tpu-v5p", "h100", "cpu-host"])
def test_one_element_is_set_as_without_a_plan(hardware: str) -> None:
    """What is written is a scalar, which has no last dimension: planning ended in IndexError."""

    def fn(x: jax.Array, row: jax.Array) -> jax.Array:
        return x.at[row, 3].set(1.0)

    x, row = jnp.zeros((64, 128)), jnp.int32(2)
    plan = autoshard.optimize(fn, x, row, mesh="data=4,model=2", hardware=hardware, baselines=False)
    np.testing.assert_array_equal(plan.jit()(x, row), fn(x, row))
