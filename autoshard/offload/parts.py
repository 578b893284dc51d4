"""Arrays in equal parts along one dimension, or along the pieces that devices cut it into."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax


@dataclass(frozen=True, slots=True)
class Parts:
    """A split of arrays of one shape into equal parts.

    Args:
        whole: Their shape.
        dim: The dimension that is taken apart.
        count: Of the parts.
        pieces: That devices cut the dimension into, one after another.
    """

    whole: tuple[int, ...]
    dim: int
    count: int
    pieces: int = 1

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one part; of parts of all pieces, their number stands before the dimension."""
        return self._with_size(self.whole[self.dim] // self.pieces // self.count)

    @property
    def view(self) -> tuple[int, ...]:
        """The shape in which parts are read: of each piece by itself."""
        return self._with_size(self.whole[self.dim] // self.pieces)

    def viewed(self, array: Any) -> Any:
        """An array in that shape, where it lies; a scalar as it is."""
        is_own = not array.shape or self.pieces == 1
        return array if is_own else jax.lax.reshape(array, self.view)

    def restored(self, array: Any) -> Any:
        """The array that was viewed."""
        return array if self.pieces == 1 else jax.lax.reshape(array, self.whole)

    def _with_size(self, size: int) -> tuple[int, ...]:
        before = (self.pieces,) if self.pieces > 1 else ()
        return (*self.whole[: self.dim], *before, size, *self.whole[self.dim + 1 :])

    def read(self, array: Any, index: Any) -> Any:
        """One part of a viewed array; a scalar as it is."""
        if not array.shape:
            return array
        start = self._start(index)
        return jax.lax.dynamic_slice(array, start, self.shape, allow_negative_indices=False)

    def written(self, array: Any, part: Any, index: Any) -> Any:
        """A viewed array with one part of it replaced."""
        start = self._start(index)
        return jax.lax.dynamic_update_slice(array, part, start, allow_negative_indices=False)

    def _start(self, index: Any) -> list[Any]:
        """Of a part, by dimension."""
        dim = self.dim + (self.pieces > 1)
        return [index * size if at == dim else 0 for at, size in enumerate(self.shape)]
