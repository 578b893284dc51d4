"""The result of a schedule: where a device adds up, and how sums get home."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax._src.lax.parallel import all_gather_invariant

from autoshard.apply.scheduled.digit_array import (
    DigitArray,
    digit_sizes,
    place_in,
    split_axis,
)
from autoshard.apply.scheduled.fetching import Loops, permuted
from autoshard.loops.bringing import Lane
from autoshard.loops.digits import Digit
from autoshard.loops.sending import Sending


@dataclass(frozen=True, slots=True)
class Summing:
    """A way of adding up and bringing home, as collectives over mesh axes.

    Args:
        plan: What is scattered, reduced, gathered or passed on.
        axis_names: The mesh axis of each grid dimension.
    """

    plan: Sending
    axis_names: tuple[str, ...]

    def add(self, total: jax.Array, product: jax.Array, at: Loops) -> jax.Array:
        """Add a local product where it belongs; `at` has the loops and the lane."""
        schedule, free = self.plan.placed.schedule, self.plan.free
        here = [d for d in free if d.is_fixed(schedule, at.keys())]
        if not here:
            return total + product.reshape(total.shape)
        zero = jnp.zeros((), jnp.int32)
        starts = [
            jnp.asarray(d.value(schedule, at), jnp.int32) if d in here else zero for d in free
        ]
        sizes = [1 if d in here else d.size for d in free]
        old = lax.dynamic_slice(total, starts, sizes)
        added: jax.Array = lax.dynamic_update_slice(total, old + product.reshape(sizes), starts)
        return added

    def pass_on(self, total: jax.Array, lane: Lane) -> jax.Array:
        """Sums under way, one device further."""
        return permuted(total, self.plan.passing(lane), self.plan.placed.grid, self.axis_names)

    def bring_home(self, totals: Mapping[Lane, jax.Array]) -> jax.Array:
        """The device's piece of the result at home."""
        total = self._joined(totals)
        for grid_dim in self.plan.scattered:
            total = self._scatter(total, grid_dim)
        names = tuple(self.axis_names[grid_dim] for grid_dim in self.plan.reduced)
        if names:
            total = DigitArray(lax.psum(total.data, names), total.digits)
        for digit, grid_dim in self.plan.gathered:
            total = self._gather(total, digit, grid_dim)
        return total.merged(len(self.plan.placed.schedule.statement.result.indices))

    def _joined(self, totals: Mapping[Lane, jax.Array]) -> DigitArray:
        """The lanes side by side."""
        lanes, free = self.plan.lanes, self.plan.free
        if len(lanes) == 1:
            return DigitArray(totals[lanes[0]], free)
        digit = next(d for d in self.plan.digits if d.leaf == lanes[0][0][0])
        axis = place_in(free, digit, self.plan.digits)
        data = jnp.stack([totals[lane] for lane in lanes], axis)
        return DigitArray(data, (*free[:axis], digit, *free[axis:]))

    def _scatter(self, total: DigitArray, grid_dim: int) -> DigitArray:
        digits = tuple(d for d in total.digits if d.grid_dim == grid_dim)
        axis = total.digits.index(digits[0])
        left = tuple(d for d in total.digits if d not in digits)
        shape = (*digit_sizes(left[:axis]), -1, *digit_sizes(left[axis:]))
        data = lax.psum_scatter(
            total.data.reshape(shape), self.axis_names[grid_dim], scatter_dimension=axis
        )
        return DigitArray(data, left)

    def _gather(self, total: DigitArray, digit: Digit, grid_dim: int) -> DigitArray:
        axis = place_in(total.digits, digit, self.plan.digits)
        data: Any = all_gather_invariant(total.data, self.axis_names[grid_dim], axis=axis)
        return DigitArray(*split_axis(data, total.digits, axis, (digit,)))
