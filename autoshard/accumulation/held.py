"""Ways in which a value depends on the examples of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from math import prod
from typing import TypeAlias

from jax.extend.core import JaxprEqn


class Shared(Enum):
    """A value that all examples share."""

    ZERO = "zero"
    ANY = "any"


@dataclass(frozen=True, slots=True)
class Rows:
    """A value with something of its own for every example, along one dimension.

    Args:
        dim: The dimension; it has `outer * batch size * inner` elements.
        outer: Repeats of the batch in it.
        inner: Elements of one example in a row.
    """

    dim: int
    outer: int = 1
    inner: int = 1

    def at(self, dim: int) -> Rows:
        return replace(self, dim=dim)


@dataclass(frozen=True, slots=True)
class Total:
    """A value that is a total over examples: over microbatches, the totals of each are combined.

    Args:
        kind: `add`, `max`, `min`, `and` or `or`.
    """

    kind: str = "add"


Held: TypeAlias = Shared | Rows | Total

Shape: TypeAlias = tuple[int, ...]


class MixedExamplesError(Exception):
    """An op takes examples together otherwise than to add them up."""

    def __init__(self, eqn: JaxprEqn, why: str) -> None:
        super().__init__(why)
        self.eqn, self.why = eqn, why


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch in equal microbatches; example `e` is in microbatch `e % count`.

    A batch that is cut over devices stays so: each has as many examples of every microbatch.

    Args:
        size: Examples in all.
        count: Microbatches.
    """

    size: int
    count: int

    def piece(self, shape: Sequence[int], rows: Rows) -> Shape:
        """The shape that one microbatch has of a value."""
        local = rows.outer * (self.size // self.count) * rows.inner
        return (*shape[: rows.dim], local, *shape[rows.dim + 1 :])

    def full(self, rows: Rows) -> int:
        """Elements of the dimension."""
        return rows.outer * self.size * rows.inner

    def has(self, shape: Sequence[int], rows: Rows) -> bool:
        """True where a value of this shape has something for each example in that dimension."""
        return len(shape) > rows.dim and shape[rows.dim] == self.full(rows)

    def reshaped(self, before: Shape, rows: Rows, after: Shape) -> Rows | None:
        """Where the examples are after a reshape; None where they are not in one dimension."""
        outer = prod(before[: rows.dim]) * rows.outer
        passed = 1
        for dim, size in enumerate(after):
            if passed * size > outer:
                ours, rest = divmod(outer, passed)
                inner, odd = divmod(size, ours * self.size)
                return None if rest or odd or not inner else Rows(dim, ours, inner)
            passed *= size
        return None


def joined(held: Held, other: Held) -> Held | None:
    """The way to depend on examples that covers two others; None where there is none."""
    if held == other:
        return held
    first, second = (held, other) if isinstance(held, Shared) else (other, held)
    if not isinstance(first, Shared):
        return None
    if isinstance(second, Total):
        return second if first is Shared.ZERO and second.kind == "add" else None
    return second if isinstance(second, Rows) else Shared.ANY
