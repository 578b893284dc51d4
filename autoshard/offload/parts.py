"""Arrays in equal parts along one dimension."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax


@dataclass(frozen=True, slots=True)
class Parts:
    """How arrays of one shape are taken apart.

    Args:
        whole: Their shape.
        dim: The dimension that is taken apart.
        count: Of the parts.
    """

    whole: tuple[int, ...]
    dim: int
    count: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one part."""
        size = self.whole[self.dim] // self.count
        return (*self.whole[: self.dim], size, *self.whole[self.dim + 1 :])

    def read(self, array: Any, index: Any) -> Any:
        """One part of an array; a scalar as it is."""
        if not array.shape:
            return array
        start = self._start(index)
        return jax.lax.dynamic_slice(array, start, self.shape, allow_negative_indices=False)

    def written(self, array: Any, part: Any, index: Any) -> Any:
        """An array with one part of it replaced."""
        start = self._start(index)
        return jax.lax.dynamic_update_slice(array, part, start, allow_negative_indices=False)

    def _start(self, index: Any) -> list[Any]:
        """Of a part, by dimension."""
        size = self.shape[self.dim]
        return [index * size if at == self.dim else 0 for at in range(len(self.whole))]
