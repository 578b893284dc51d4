"""Stacks that a loop reads for gradients that sum over their leading dimensions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard.graph.summed_stacks import summed_stacks
from tests.planner.traced import exported

TIME, ROWS, CHANNELS, STATES = 128, 64, 32, 16


def gradients(decay: Any, read: Any, x: Any) -> Any:
    """Of states [rows, channels, states] that fade, and are read out at every time."""

    def loss(decay: Any, read: Any) -> Any:
        def tick(h: Any, at: Any) -> Any:
            x, read = at
            h = decay * h + x[:, :, None]
            return h, jnp.sum(h * read[:, None, :], -1)

        zeros = jnp.zeros((ROWS, CHANNELS, STATES))
        return jnp.sum(jax.lax.scan(jax.checkpoint(tick), zeros, (x, read))[1])

    return jax.grad(loss, argnums=(0, 1))(decay, read)


def shapes(*decay: int) -> list[jax.ShapeDtypeStruct]:
    every = (decay, (TIME, ROWS, STATES), (TIME, ROWS, CHANNELS))
    return [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in every]


@pytest.mark.parametrize(
    ("decay", "is_copied"),
    [
        ((CHANNELS, STATES), True),
        ((ROWS, 1, STATES), True),
        ((ROWS, CHANNELS, 1), False),  # the summed dimension is the minor one
        ((STATES,), False),  # a vector has no order
    ],
)
def test_the_order_of_a_gradient_that_a_loop_adds_up_is_that_of_the_stack_it_sums(
    decay: tuple[int, ...], is_copied: bool
) -> None:
    """That of what reads the states, summed over channels, is written to a stack of its own."""
    graph, _ = exported(gradients, *shapes(*decay), mesh="x=2")
    assert len(summed_stacks(graph)) == is_copied


@pytest.mark.parametrize(("chip", "is_twice"), [("h100", True), ("cpu-host", False)])
def test_a_gpu_holds_the_states_twice_before_the_loop_that_sums_them(
    chip: str, is_twice: bool
) -> None:
    """A third less was planned than is compiled."""
    plan = autoshard.optimize(
        gradients, *shapes(CHANNELS, STATES), mesh="data=1", hardware=chip, baselines=False
    )
    states = 4 * TIME * ROWS * CHANNELS * STATES
    assert (plan.data.memory.peak_bytes > 2 * states) == is_twice
