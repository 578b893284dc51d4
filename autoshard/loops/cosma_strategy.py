"""COSMA's choice: the grid and the steps that move the fewest words within a memory."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from autoshard.errors import ScheduleError
from autoshard.loops.closed_forms import cosma_volume
from autoshard.loops.library import cosma
from autoshard.loops.placed import Placed


@dataclass(frozen=True, slots=True)
class Split:
    """One split of the product: among processors, or into steps; prints as `pm2`, `sk4`."""

    kind: Literal["parallel", "sequential"]
    dim: Literal["m", "n", "k"]
    parts: int

    def __str__(self) -> str:
        return f"{self.kind[0]}{self.dim}{self.parts}"


@dataclass(frozen=True, slots=True)
class CosmaStrategy:
    """A grid and a sequence of splits for a product of `m x k` by `k x n`.

    Args:
        sizes: `m`, `n` and `k`.
        grid: Processors along each.
        panel: Values of `k` that one step takes on a processor; None for all at once.
        splits: The same as a sequence, each halving (or so) what is largest then; steps last.
        words: What a processor receives.
        held: The most words a processor holds, homes included.
    """

    sizes: tuple[int, int, int]
    grid: tuple[int, int, int]
    panel: int | None
    splits: tuple[Split, ...]
    words: float
    held: int

    def placed(self) -> Placed:
        """The schedule."""
        return cosma(*self.sizes, self.grid, panel=self.panel)

    def __str__(self) -> str:
        return ",".join(map(str, self.splits))


def cosma_strategy(m: int, n: int, k: int, num_processors: int, memory_words: int) -> CosmaStrategy:
    """The grid with the fewest words moved, and then the fewest steps, that fits the memory.

    All grids are tried. What a processor holds is its share of the three tensors, the sum it is
    working on where that is not its share, and the panels of a step.

    Raises:
        ScheduleError: No grid divides the sizes, or none fits; the message says what would.

    Source: Kwasniewski, Kabic, Besta, VandeVondele, Solca and Hoefler (2019).
    """
    where = f"{m} x {k} by {k} x {n} on {num_processors} processors"
    best: tuple[tuple[float, int, tuple[int, ...]], tuple[int, int, int], int | None, int] | None
    best = None
    least = None
    for grid in _grids(num_processors):
        home = (m * n + m * k + k * n) // num_processors
        for num_steps, panel in _panels(m, n, k, grid):
            volume = cosma_volume(m, n, k, grid, panel)
            held = home + volume.held
            least = held if least is None else min(least, held)
            if held > memory_words:
                continue
            rank = (float(volume.words), num_steps, grid)
            if best is None or rank < best[0]:
                best = (rank, grid, panel, held)
    if least is None:
        raise ScheduleError(
            f"no grid of {num_processors} processors divides the sizes",
            where=where,
            fix="pad the sizes to multiples of the number of processors",
        )
    if best is None:
        raise ScheduleError(
            f"{memory_words} words do not hold the tensors and one panel of each",
            where=where,
            fix=f"give at least {least} words, or more processors",
        )
    rank, grid, panel, held = best
    return CosmaStrategy((m, n, k), grid, panel, _splits((m, n, k), grid, panel), rank[0], held)


def _grids(num: int) -> Iterator[tuple[int, int, int]]:
    for rows in _divisors(num):
        for columns in _divisors(num // rows):
            yield rows, columns, num // rows // columns


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]


def _panels(m: int, n: int, k: int, grid: tuple[int, int, int]) -> Iterator[tuple[int, int | None]]:
    """Number of steps and panel, the fewest steps first; nothing if the grid does not divide."""
    gi, gj, gk = grid
    segments = math.lcm(gi, gj)
    if m % (gi * gk) or n % gj or k % (gk * segments):
        return
    yield 1, None
    local = k // gk
    for num_steps in _divisors(local // segments)[1:]:
        yield num_steps, local // num_steps


def _splits(
    sizes: tuple[int, int, int], grid: tuple[int, int, int], panel: int | None
) -> tuple[Split, ...]:
    names: tuple[Literal["m", "n", "k"], ...] = ("m", "n", "k")
    left = dict(zip(names, sizes, strict=True))
    factors = {name: _prime_factors(parts) for name, parts in zip(names, grid, strict=True)}
    splits = []
    while any(factors.values()):
        name = max((n for n in names if factors[n]), key=lambda n: (left[n], -names.index(n)))
        parts = factors[name].pop(0)
        left[name] //= parts
        splits.append(Split("parallel", name, parts))
    if panel is not None:
        splits.append(Split("sequential", "k", left["k"] // panel))
    return tuple(splits)


def _prime_factors(number: int) -> list[int]:
    factors = []
    for size in itertools.count(2):
        while number % size == 0:
            factors.append(size)
            number //= size
        if number == 1:
            return factors
    raise AssertionError("every number has a factorization")
