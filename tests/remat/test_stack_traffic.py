"""Of a step that fits as it is written, what is slower to keep than to compute again."""

from __future__ import annotations

import jax
import jax.numpy as jnp

import autoshard
from tests.remat.test_residual_nodes import gelu_layers


def planned(budget: int, remat: str = "auto") -> autoshard.Plan:
    def of(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16)

    layers = {"up": of(4, 512, 2048), "down": of(4, 2048, 512)}
    return autoshard.optimize(
        gelu_layers,
        {"layers": layers, "head": of(512, 512)},
        of(64, 512, 512),
        jax.ShapeDtypeStruct((64, 512), jnp.int32),
        mesh="data=4",
        hardware="tpu-v5e",
        memory_budget=budget,
        baselines=False,
        schedules="none",
        remat=remat,
    )


def test_stacks_that_take_longer_to_move_than_to_compute_are_computed_again() -> None:
    """It fits as it is written, and more memory would not make it faster."""
    kept = planned(1_000_000_000, "keep").data
    found = planned(1_000_000_000).data
    assert kept.is_feasible
    assert found.residuals is not None
    assert found.priced_seconds < 0.6 * kept.priced_seconds
