"""A local array with one axis for each digit it has."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax import lax

from autoshard.loops.digits import Digit


@dataclass(frozen=True, slots=True, eq=False)
class DigitArray:
    """Part of a tensor on one device; digits that are not listed have one value there.

    Args:
        data: One axis for each digit.
        digits: In the order of the tensor's digits.
    """

    data: jax.Array
    digits: tuple[Digit, ...]

    def fix(self, digit: Digit, value: Any) -> DigitArray:
        """The part with this value of `digit`, which may be traced."""
        axis = self.digits.index(digit)
        data = lax.dynamic_index_in_dim(self.data, value, axis, keepdims=False)
        return DigitArray(data, (*self.digits[:axis], *self.digits[axis + 1 :]))

    def gather(self, digits: tuple[Digit, ...], axis_name: str, order: Sequence[Digit]) -> Any:
        """All values of `digits`, which together are the coordinate along a mesh axis.

        Args:
            digits: Neighbours, major to minor.
            axis_name: The mesh axis.
            order: All digits of the tensor.
        """
        axis = place_in(self.digits, digits[0], order)
        data = lax.all_gather(self.data, axis_name, axis=axis)
        return DigitArray(*split_axis(data, self.digits, axis, digits))

    def merged(self, rank: int) -> jax.Array:
        """The same as an array of the tensor's rank."""
        return self.data.reshape(dim_sizes(self.digits, rank))


def dim_sizes(digits: Sequence[Digit], rank: int) -> tuple[int, ...]:
    """The local size of each dimension: the product of its digits."""
    return tuple(math.prod(d.size for d in digits if d.dim == dim) for dim in range(rank))


def digit_sizes(digits: Sequence[Digit]) -> tuple[int, ...]:
    return tuple(digit.size for digit in digits)


def place_in(present: Sequence[Digit], digit: Digit, order: Sequence[Digit]) -> int:
    """The axis at which `digit` belongs among those present."""
    place = order.index(digit)
    return sum(order.index(other) < place for other in present)


def split_axis(
    data: jax.Array, present: tuple[Digit, ...], axis: int, digits: tuple[Digit, ...]
) -> tuple[jax.Array, tuple[Digit, ...]]:
    """Axis `axis`, new in `data`, as the axes of `digits`."""
    shape = (*data.shape[:axis], *digit_sizes(digits), *data.shape[axis + 1 :])
    return data.reshape(shape), (*present[:axis], *digits, *present[axis:])
