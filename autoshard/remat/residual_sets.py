"""Which residuals to keep, by the price of memory: minimum cuts of the forward graph.

No JAX here: values and equations are numbers, and have bytes and seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_flow

_CAPACITY = 2**30
"""Sum of all finite capacities: SciPy computes flows in 32 bits."""
_UNLIMITED = 2**31 - 1
_MAX_DEPTH = 3
"""How often the price of memory is halved between the cheapest and the leanest set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardValue:
    """A value that a backward pass may read.

    Args:
        name: As the joint program names it.
        num_bytes: That keeping it takes on one device; 0 of a fused value.
        keep_seconds: That writing and reading it takes.
        maker: The equation that computes it again; None where it can only be kept.
        is_fused: It has no buffer: who reads it computes it from what that is computed from. Both
            passes do, so it is kept if all of that is.
        is_required: The backward pass reads it.
    """

    name: str
    num_bytes: int
    keep_seconds: float
    maker: int | None
    is_fused: bool
    is_required: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardEquation:
    """An equation that a backward pass may compute again.

    Args:
        seconds: That all its runs take.
        operands: Values it reads; those that are there anyway are left out.
    """

    seconds: float
    operands: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidualSet:
    """What is kept, and what that takes.

    Args:
        kept: Positions of values.
        again: Positions of equations that are computed again.
        num_bytes: Of all that is kept.
        seconds: Of what is computed again.
        keep_seconds: Of writing and reading what is kept.
    """

    kept: tuple[int, ...]
    again: tuple[int, ...]
    num_bytes: int
    seconds: float
    keep_seconds: float

    @property
    def total_seconds(self) -> float:
        return self.seconds + self.keep_seconds


@dataclass(frozen=True)
class ForwardCosts:
    """The values and equations of all forward passes of a program, with what they take."""

    values: Sequence[ForwardValue]
    equations: Sequence[ForwardEquation]

    def cheapest(self, seconds_per_byte: float) -> ResidualSet:
        """The set that takes the least time, where every byte kept is paid for.

        Each value that is needed is kept, or its equation is computed again and needs its operands.
        That is a minimum cut: between a value and its equation stands the price of keeping, between
        an equation and the sink that of computing it.

        Args:
            seconds_per_byte: The price of memory.
        """
        prices = [value.keep_seconds + seconds_per_byte * value.num_bytes for value in self.values]
        scale = self._scale(prices)
        num_values, num_equations = len(self.values), len(self.equations)
        source, sink = num_values + num_equations, num_values + num_equations + 1
        edges: dict[tuple[int, int], int] = {}

        def capacity(seconds: float) -> int:
            return max(1, round(seconds * scale)) if seconds > 0 else 0

        for position, value in enumerate(self.values):
            target = sink if value.maker is None else num_values + value.maker
            edges[position, target] = capacity(prices[position])
            if value.is_required:
                edges[source, position] = _UNLIMITED
        for position, equation in enumerate(self.equations):
            edges[num_values + position, sink] = capacity(equation.seconds)
            for operand in equation.operands:
                edges[num_values + position, operand] = _UNLIMITED
        for position in self.fused_reads:
            maker = self.values[position].maker
            assert maker is not None
            for operand in self.equations[maker].operands:
                edges[position, operand] = _UNLIMITED
                source_of_it = self.values[operand].maker
                if source_of_it is not None:
                    edges[num_values + source_of_it, num_values + maker] = _UNLIMITED
        needed = _source_side(edges, source, sink)
        again = tuple(i for i in range(num_equations) if num_values + i in needed)
        computed = set(again)
        kept = tuple(
            i
            for i, value in enumerate(self.values)
            if i in needed and (value.maker is None or value.maker not in computed)
        )
        return self.totals(kept, again)

    @cached_property
    def fused_reads(self) -> tuple[int, ...]:
        """Fused values that the backward pass reads, directly or through others."""
        found: set[int] = set()
        todo = [i for i, value in enumerate(self.values) if value.is_required]
        while todo:
            position = todo.pop()
            value = self.values[position]
            if value.is_fused and value.maker is not None and position not in found:
                found.add(position)
                todo += self.equations[value.maker].operands
        return tuple(sorted(found))

    def totals(self, kept: tuple[int, ...], again: tuple[int, ...]) -> ResidualSet:
        return ResidualSet(
            kept=kept,
            again=again,
            num_bytes=sum(self.values[i].num_bytes for i in kept),
            seconds=sum(self.equations[i].seconds for i in again),
            keep_seconds=sum(self.values[i].keep_seconds for i in kept),
        )

    @cached_property
    def ladder(self) -> tuple[ResidualSet, ...]:
        """Sets on the lower hull of bytes and seconds, the one that keeps most first.

        Each takes the least time for some price of memory; between two neighbours none is that is
        below their line, as far as the search goes.
        """
        fastest, leanest = self.cheapest(0.0), self.cheapest(self._dear)
        found = {fastest.num_bytes: fastest}
        if leanest.num_bytes < fastest.num_bytes:
            found[leanest.num_bytes] = leanest
            self._between(fastest, leanest, _MAX_DEPTH, found)
        return tuple(found[num_bytes] for num_bytes in sorted(found, reverse=True))

    def _between(
        self, more: ResidualSet, less: ResidualSet, depth: int, found: dict[int, ResidualSet]
    ) -> None:
        if depth == 0:
            return
        price = (less.total_seconds - more.total_seconds) / (more.num_bytes - less.num_bytes)
        between = self.cheapest(max(price, 0.0))
        if not less.num_bytes < between.num_bytes < more.num_bytes:
            return
        found[between.num_bytes] = between
        self._between(more, between, depth - 1, found)
        self._between(between, less, depth - 1, found)

    @property
    def _dear(self) -> float:
        """A price of memory at which the fewest bytes win, whatever they take to compute."""
        sizes = [value.num_bytes for value in self.values if value.num_bytes]
        total = sum(equation.seconds for equation in self.equations)
        total += sum(value.keep_seconds for value in self.values)
        return 2.0 * total / min(sizes, default=1)

    def _scale(self, prices: Sequence[float]) -> float:
        total = sum(prices) + sum(equation.seconds for equation in self.equations)
        return _CAPACITY / total if total > 0 else 0.0


def _source_side(edges: dict[tuple[int, int], int], source: int, sink: int) -> set[int]:
    """Nodes on the side of the source of a minimum cut."""
    size = sink + 1
    rows, columns = zip(*edges, strict=True) if edges else ((), ())
    shape = (size, size)
    capacities = csr_matrix(
        (np.array([*edges.values()], dtype=np.int32), (rows, columns)), shape=shape
    )
    flow = maximum_flow(capacities, source, sink).flow
    left = (capacities - flow).tocsr()
    reached, todo = {source}, deque([source])
    while todo:
        node = todo.popleft()
        for entry in range(left.indptr[node], left.indptr[node + 1]):
            to = int(left.indices[entry])
            if left.data[entry] > 0 and to not in reached:
                reached.add(to)
                todo.append(to)
    return reached
