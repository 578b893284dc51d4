"""The cost estimate that a Pallas kernel carries."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl

import autoshard
from autoshard import CustomCost
from cost_models import get_hardware


def doubled(x: jax.Array, estimate: pl.CostEstimate | None = None) -> jax.Array:
    def kernel(source: object, target: object) -> None:
        target[...] = source[...] * 2  # type: ignore[index]

    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    made: jax.Array = pl.pallas_call(kernel, out_shape=shape, cost_estimate=estimate)(x)
    return made


X = jax.ShapeDtypeStruct((1024, 1024), jnp.float32)
ONE_SECOND = pl.CostEstimate(flops=int(197e12), transcendentals=0, bytes_accessed=0)


def seconds(estimate: pl.CostEstimate | None, **options: object) -> float:
    plan = autoshard.optimize(
        lambda x: doubled(x, estimate),
        X,
        mesh="x=4",
        hardware="tpu-v5e",
        baselines=False,
        **options,  # type: ignore[arg-type]
    )
    (call,) = (op for op in plan.data.ops if op.name == "custom_call @tpu_custom_call")
    return call.compute_seconds


def test_a_kernels_own_estimate_is_its_price_and_the_users_goes_before_it() -> None:
    machine = get_hardware("tpu-v5e")
    read_and_written = 8 * 2**20 / machine.memory.bytes_per_second
    launch = machine.compute.kernel_launch_seconds
    assert seconds(None) == pytest.approx(read_and_written + launch, rel=0.01)
    assert seconds(ONE_SECOND) == pytest.approx(1.0, rel=0.01)
    told = {"tpu_custom_call": CustomCost(flops=2 * 197e12)}
    assert seconds(ONE_SECOND, custom_costs=told) == pytest.approx(2.0, rel=0.01)
