"""Temporaries that ops take beside their operands and results: planned as compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import autoshard

pytestmark = pytest.mark.usefixtures("compiled_here")


def memory_difference(step: Callable[..., Any], *arguments: Any, sharding: P) -> float:
    """Of a plan for 8 host CPUs: its peak over the compiled one, less one."""
    plan = autoshard.optimize(
        step,
        *arguments,
        mesh="data=8",
        hardware="cpu-host",
        in_shardings=sharding,
        out_shardings=sharding,
        baselines=False,
    )
    return plan.verify().memory_difference


def max_pool_gradient(image: Any) -> Any:
    def pooled(image: Any) -> Any:
        window = (1, 2, 2, 1)
        return jnp.tanh(lax.reduce_window(image, -jnp.inf, lax.max, window, window, "VALID")).sum()

    return jax.grad(pooled)(image)


def test_the_gradient_of_a_max_pool_holds_the_positions_that_it_selects() -> None:
    image = jax.ShapeDtypeStruct((64, 32, 32, 16), jnp.float32)
    assert memory_difference(max_pool_gradient, image, sharding=P("data")) == pytest.approx(
        0, abs=0.15
    )


@pytest.mark.parametrize(
    ("indices", "shapes"),
    [
        ("akb,kj->abj", [(64, 64, 128), (64, 64)]),
        ("bqhd,bkhd->bhqk", [(16, 32, 16, 32), (16, 32, 16, 32)]),
        ("abk,bkj->aj", [(128, 32, 64), (32, 64, 128)]),
        ("ki,kj->ij", [(256, 512), (256, 128)]),
    ],
)
def test_operands_that_are_no_matrices_are_transposed(
    indices: str, shapes: list[tuple[int, ...]]
) -> None:
    operands = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    found = memory_difference(
        lambda *operands: jnp.einsum(indices, *operands), *operands, sharding=P()
    )
    assert found == pytest.approx(0, abs=0.1)


def scan_gradient(gates: Any, inputs: Any) -> Any:
    def last(one: Any, other: Any) -> Any:
        return one[0] * other[0], other[0] * one[1] + other[1]

    def loss(inputs: Any) -> Any:
        return jnp.sum(lax.associative_scan(last, (gates, inputs), axis=1)[1] ** 2)

    return jax.grad(loss)(inputs)


def shifted_sum(gates: Any, inputs: Any) -> Any:
    product = jnp.pad(gates * inputs, ((0, 0), (0, 32), (0, 0)))
    return sum(product[:, at : at + 128] for at in range(20))


@pytest.mark.parametrize("step", [scan_gradient, shifted_sum])
def test_a_kernel_computes_no_value_at_many_positions(step: Any) -> None:
    rows = jax.ShapeDtypeStruct((64, 128, 64), jnp.float32)
    assert memory_difference(step, rows, rows, sharding=P("data")) == pytest.approx(0, abs=0.15)


def test_a_plan_whose_compiled_peak_passes_its_budget_says_that_it_may() -> None:
    """The gradient of a selective scan on CPUs takes up to half as much again as is planned."""

    def step(times: Any, fading: Any, x: Any, taken: Any) -> Any:
        def loss(times: Any, fading: Any, x: Any, taken: Any) -> Any:
            kept = jnp.exp(times[..., None] * fading)
            added = (times * x)[..., None] * taken[:, :, None, :]

            def after(first: Any, then: Any) -> Any:
                return first[0] * then[0], then[0] * first[1] + then[1]

            return (lax.associative_scan(after, (kept, added), axis=1)[1] ** 2).sum()

        return jax.grad(loss, (0, 1, 2, 3))(times, fading, x, taken)

    shapes = [(8, 32, 16), (16, 8), (8, 32, 16), (8, 32, 8)]
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]

    def planned(budget: int | None) -> autoshard.Plan:
        return autoshard.optimize(
            step,
            *arguments,
            mesh="data=8",
            hardware="cpu-host",
            memory_budget=budget,
            in_shardings=(P("data"), P(), P("data"), P("data")),
            baselines=False,
        )

    budget = int(1.3 * planned(None).data.memory.peak_bytes)
    plan = planned(budget)
    memory = plan.jit().lower(*arguments).compile().memory_analysis()
    held = memory.argument_size_in_bytes + memory.output_size_in_bytes
    assert held + memory.temp_size_in_bytes > 1.05 * budget
    assert any("of the memory budget" in note for note in plan.data.notes)
