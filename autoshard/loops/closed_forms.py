"""Words moved and words held, in formulas, for the schedules of the library.

Words moved are those a processor receives, on average; held are those beside what lives there, on
the processor that needs most. Sends and receives of one turn happen at the same time, so what is
passed on is held twice. Tensors on a face count as `johnson` and `solomonik` place them: an
average, as those behind the face receive and those on it do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class Volume:
    """What a schedule moves and holds, in words.

    Args:
        received: For `A`, `B` and `C`: words a processor receives, on average.
        held: Words beside its home pieces on the processor that needs most, at one time.
    """

    received: tuple[Fraction, Fraction, Fraction]
    held: int

    @property
    def words(self) -> Fraction:
        """Words received, of all tensors."""
        return sum(self.received, Fraction(0))


def _others(num: int) -> Fraction:
    """The share of a piece that comes from the others, where `num` hold equal parts."""
    return Fraction(num - 1, num)


def summa_volume(m: int, n: int, k: int, grid: Sequence[int], panel: int | None = None) -> Volume:
    """Each processor receives what it lacks of its block row of B and its block column of C.

    It holds one panel of each that it needs from others.
    """
    rows, columns = grid
    width = k if panel is None else panel
    held = (m // rows * width if columns > 1 else 0) + (width * n // columns if rows > 1 else 0)
    received_b = Fraction(m * k, rows) * _others(columns)
    received_c = Fraction(k * n, columns) * _others(rows)
    return Volume((Fraction(0), received_b, received_c), held)


def cannon_volume(m: int, n: int, k: int, grid: Sequence[int]) -> Volume:
    """2.5-D with one layer."""
    return solomonik_volume(m, n, k, (*grid, 1))


def pumma_volume(m: int, n: int, k: int, grid: Sequence[int]) -> Volume:
    """B as in SUMMA; a block of C in every step but the first."""
    rows, columns = grid
    block_b, block_c = Fraction(m * k, rows * rows), Fraction(k * n, rows * columns)
    held = (block_b if columns > 1 else 0) + (2 * block_c if rows > 1 else 0)
    return Volume(
        (Fraction(0), Fraction(m * k, rows) * _others(columns), (rows - 1) * block_c), int(held)
    )


def johnson_volume(m: int, n: int, k: int, grid: Sequence[int]) -> Volume:
    """One block of each tensor, from the face or on to it."""
    gi, gj, gk = grid
    block_a, block_b = Fraction(m * n, gi * gj), Fraction(m * k, gi * gk)
    block_c = Fraction(k * n, gk * gj)
    received = (block_a * _others(gk), block_b * _others(gj), block_c * _others(gi))
    held = sum(
        block for block, across in ((block_a, gk), (block_b, gj), (block_c, gi)) if across > 1
    )
    return Volume(received, int(held))


def solomonik_volume(m: int, n: int, k: int, grid: Sequence[int]) -> Volume:
    """The first blocks, a block for each further step of a layer, and the sum over layers.

    Of the first blocks, one processor in `g` already has a `c`-th of what it needs (those on the
    face have all of it, one in `g` of them).
    """
    side, _, layers = grid
    if side == 1:
        return Volume((Fraction(0),) * 3, 0)
    steps = side // layers
    block_a, block_b, block_c = (Fraction(size, side * side) for size in (m * n, m * k, k * n))
    blocks = 1 - Fraction(1, side * layers) + (steps - 1)
    twice = 2 if steps > 1 else 1
    held = twice * (block_b + block_c) + (block_a if layers > 1 else 0)
    return Volume((block_a * _others(layers), blocks * block_b, blocks * block_c), int(held))


def cosma_volume(m: int, n: int, k: int, grid: Sequence[int], panel: int | None = None) -> Volume:
    """The same words as Johnson's; a panel of each operand is held instead of a block."""
    gi, gj, gk = grid
    whole = johnson_volume(m, n, k, grid)
    width = k // gk if panel is None else panel
    held = (m // gi * width if gj > 1 else 0) + (width * n // gj if gi > 1 else 0)
    return Volume(whole.received, held + (m * n // (gi * gj) if gk > 1 else 0))


def all_gather_matmul_volume(m: int, n: int, k: int, num: int) -> Volume:  # noqa: ARG001
    """Every piece of B passes by."""
    if num == 1:
        return Volume((Fraction(0),) * 3, 0)
    return Volume((Fraction(0), m * k * _others(num), Fraction(0)), 2 * m * k // num)


def matmul_reduce_scatter_volume(m: int, n: int, k: int, num: int) -> Volume:  # noqa: ARG001
    """Every sum but the own passes by."""
    if num == 1:
        return Volume((Fraction(0),) * 3, 0)
    return Volume((m * n * _others(num), Fraction(0), Fraction(0)), m * n // num)
