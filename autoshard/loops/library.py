"""The known distributed matrix products as points of the schedule language.

All compute `A(i,j) += B(i,k) * C(k,j)` with `m`, `n` and `k` values of `i`, `j` and `k`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autoshard.errors import ScheduleError
from autoshard.loops.distribution import Distribution
from autoshard.loops.placed import Placed, placed
from autoshard.loops.schedule import Schedule, schedule

MATMUL = "A(i,j) += B(i,k) * C(k,j)"


def summa(
    m: int,
    n: int,
    k: int,
    grid: Sequence[int],
    *,
    panel: int | None = None,
    is_contiguous: bool = False,
) -> Placed:
    """SUMMA: results stay, panels of the operands are broadcast along rows and columns.

    Args:
        m: Rows.
        n: Columns.
        k: The range summed over.
        grid: Two sizes, rows and columns of processors.
        panel: How many values of `k` one step takes; all of them if not given, which is one
            all-gather of each operand.
        is_contiguous: Take neighbouring values of `k` in each step, as in the paper: each panel
            lies on one row or column of processors, which broadcasts it. Otherwise every processor
            gives an equal share of each panel, which is an all-gather, with the same words.

    Raises:
        ScheduleError: The grid is not two-dimensional, or something does not divide.
        ShardingError: A dimension is not divided by the grid.

    Source: van de Geijn and Watts (1997), SUMMA.
    """
    rows, columns = _grid(grid, 2, "summa")
    nest = _nest(m, n, k).distribute(("i", "j"), ("io", "jo"), ("ii", "ji"), (rows, columns))
    homes = {"A": "A ij -> ij M", "B": "B ik -> ik M", "C": "C kj -> kj M"}
    if panel is None:
        return placed(nest.communicate(("A", "B", "C"), "jo"), **homes)
    if is_contiguous:
        nest = nest.split("k", "ko", "ki", panel).reorder("ko", "ii", "ji", "ki")
    else:
        nest = _in_panels(nest, "k", math.lcm(rows, columns), panel)
    return placed(nest.communicate("A", "jo").communicate(("B", "C"), "ko"), **homes)


def pumma(m: int, n: int, k: int, grid: Sequence[int]) -> Placed:
    """PUMMA: one operand is broadcast along rows, the other is passed up the columns.

    Args:
        m: Rows.
        n: Columns.
        k: The range summed over.
        grid: Two sizes, of which one divides the other.

    Raises:
        ScheduleError: The grid does not fit, or something does not divide.
        ShardingError: A dimension is not divided by the grid.

    Source: Choi, Walker and Dongarra (1994), PUMMA.
    """
    rows, columns = _grid(grid, 2, "pumma")
    if rows % columns and columns % rows:
        raise ScheduleError(
            f"pumma passes blocks of 1/{rows} of k, which do not fit the pieces of 1/{columns}",
            where=f"grid {rows} x {columns}",
            fix="use a grid of which one side divides the other, or summa",
        )
    return _passed_round(m, n, k, rows, columns, ("io",))


def _passed_round(
    m: int, n: int, k: int, rows: int, columns: int, around: tuple[str, ...]
) -> Placed:
    """Blocks of the summed range in turns, which start elsewhere for each step of `around`."""
    nest = (
        _nest(m, n, k)
        .distribute(("i", "j"), ("io", "jo"), ("ii", "ji"), (rows, columns))
        .divide("k", "ko", "ki", rows)
        .reorder("ko", "ii", "ji", "ki")
        .rotate("ko", around, "kos")
        .communicate("A", "jo")
        .communicate(("B", "C"), "kos")
    )
    return placed(nest, A="A ij -> ij M", B="B ik -> ik M", C="C kj -> kj M")


def cannon(m: int, n: int, k: int, grid: Sequence[int]) -> Placed:
    """Cannon's algorithm: both operands are passed from neighbour to neighbour.

    Args:
        m: Rows.
        n: Columns.
        k: The range summed over.
        grid: Two equal sizes.

    Raises:
        ScheduleError: The grid is not square, or something does not divide.
        ShardingError: A dimension is not divided by the grid.

    Source: Cannon (1969).
    """
    rows, columns = _grid(grid, 2, "cannon")
    if rows != columns:
        raise ScheduleError(
            f"cannon passes blocks round rows and columns in step, and the grid is {rows} x"
            f" {columns}",
            where="cannon",
            fix="use a square grid; summa takes any, pumma one whose sides divide",
        )
    return _passed_round(m, n, k, rows, columns, ("io", "jo"))


def johnson(m: int, n: int, k: int, grid: Sequence[int]) -> Placed:
    """Johnson's 3-D algorithm: each tensor lives on a face and is broadcast, or summed, across.

    Args:
        m: Rows.
        n: Columns.
        k: The range summed over.
        grid: Three sizes, for `i`, `j` and `k`.

    Raises:
        ScheduleError: The grid is not three-dimensional, or something does not divide.
        ShardingError: A dimension is not divided by the grid.

    Source: Agarwal, Balle, Gustavson, Joshi and Palkar (1995), after Johnson.
    """
    sizes = _grid(grid, 3, "johnson")
    nest = (
        _nest(m, n, k)
        .distribute(("i", "j", "k"), ("io", "jo", "ko"), ("ii", "ji", "ki"), sizes)
        .communicate(("A", "B", "C"), "ko")
    )
    return placed(nest, A="A ij -> ij0 M", B="B ik -> i0k M", C="C kj -> 0jk M")


def solomonik(m: int, n: int, k: int, grid: Sequence[int]) -> Placed:
    """Solomonik's 2.5-D algorithm: `c` layers, each doing a part of Cannon's steps.

    Args:
        m: Rows.
        n: Columns.
        k: The range summed over.
        grid: Two equal sizes and the replication factor `c`, which divides them. With `c = 1` it
            is Cannon's algorithm, with `c` the side of the grid it is 3-D.

    Raises:
        ScheduleError: The grid does not fit, or something does not divide.
        ShardingError: A dimension is not divided by the grid.

    Source: Solomonik and Demmel (2011).
    """
    rows, columns, layers = _grid(grid, 3, "solomonik")
    if rows != columns or rows % layers:
        raise ScheduleError(
            f"solomonik shares the {rows} steps of a square grid among its layers, and the grid is"
            f" {rows} x {columns} x {layers}",
            where="solomonik",
            fix="use a grid g x g x c with c a divisor of g",
        )
    nest = (
        _nest(m, n, k)
        .distribute(
            ("i", "j", "k"), ("io", "jo", "ko"), ("ii", "ji", "ki"), (rows, columns, layers)
        )
        .divide("ki", "kio", "kii", rows // layers)
        .reorder("kio", "ii", "ji", "kii")
        .rotate("kio", ("io", "jo"), "kios")
        .communicate("A", "ko")
        .communicate(("B", "C"), "kios")
    )
    return placed(nest, A="A ij -> ij0 M", B="B ik -> ik0 M", C="C kj -> kj0 M")


def cosma(m: int, n: int, k: int, grid: Sequence[int], *, panel: int | None = None) -> Placed:
    """COSMA's form: a grid for all three ranges, and the local product in steps.

    Each tensor is cut evenly over all processors. `cosma_strategy` finds grid and steps.

    Args:
        m: Rows.
        n: Columns.
        k: The range summed over.
        grid: Three sizes, for `i`, `j` and `k`.
        panel: How many of a processor's values of `k` one step takes; all if not given.

    Raises:
        ScheduleError: The grid is not three-dimensional, or something does not divide.
        ShardingError: A dimension is not divided by the grid.

    Source: Kwasniewski, Kabic, Besta, VandeVondele, Solca and Hoefler (2019).
    """
    sizes = _grid(grid, 3, "cosma")
    nest = _nest(m, n, k).distribute(("i", "j", "k"), ("io", "jo", "ko"), ("ii", "ji", "kl"), sizes)
    homes = {
        "A": Distribution.by_cuts("A", ("i", "j"), ((0, 2), (1,)), 3),
        "B": Distribution.by_cuts("B", ("i", "k"), ((0,), (2, 1)), 3),
        "C": Distribution.by_cuts("C", ("k", "j"), ((2, 0), (1,)), 3),
    }
    if panel is None:
        return placed(nest.communicate(("A", "B", "C"), "ko"), **homes)
    nest = _in_panels(nest, "kl", math.lcm(sizes[0], sizes[1]), panel, outer="ks")
    return placed(nest.communicate("A", "ko").communicate(("B", "C"), "ks"), **homes)


def all_gather_matmul(m: int, n: int, k: int, num: int, *, both_ways: bool = False) -> Placed:
    """A ring in which the rows of `B` go round, while each processor makes its columns of `A`.

    Args:
        m: Rows, cut over the ring at home.
        n: Columns, cut over the ring.
        k: The range summed over.
        num: Processors in the ring.
        both_ways: Send half of each piece one way round and half the other.

    Raises:
        ScheduleError: Something does not divide.
        ShardingError: A dimension is not divided by the ring.

    Source: Wang et al. (2023), overlapping communication with dependent computation.
    """
    nest = _nest(m, n, k).distribute(("j",), ("jo",), ("ji",), (num,)).divide("i", "io", "ii", num)
    nest = _rotated(nest, ("ji",), "jo", both_ways=both_ways)
    nest = nest.communicate(("A", "C"), "jo").communicate("B", "ios")
    return placed(nest, A="A ij -> j M", B="B ik -> i M", C="C kj -> j M")


def matmul_reduce_scatter(m: int, n: int, k: int, num: int, *, both_ways: bool = False) -> Placed:
    """A ring in which sums go round, each processor adding its share of `k`.

    Args:
        m: Rows, cut over the ring at the end.
        n: Columns.
        k: The range summed over, cut over the ring.
        num: Processors in the ring.
        both_ways: Send half of each sum one way round and half the other.

    Raises:
        ScheduleError: Something does not divide.
        ShardingError: A dimension is not divided by the ring.

    Source: Wang et al. (2023), overlapping communication with dependent computation.
    """
    nest = _nest(m, n, k).distribute(("k",), ("ko",), ("ki",), (num,)).divide("i", "io", "ii", num)
    nest = _rotated(nest, ("ki",), "ko", both_ways=both_ways)
    nest = nest.communicate(("B", "C"), "ko").communicate("A", "ios")
    return placed(nest, A="A ij -> i M", B="B ik -> k M", C="C kj -> k M")


def _nest(m: int, n: int, k: int) -> Schedule:
    return schedule(MATMUL, i=m, j=n, k=k)


def _grid(grid: Sequence[int], rank: int, name: str) -> tuple[int, ...]:
    if len(grid) != rank:
        raise ScheduleError(
            f"{name} runs on a grid of {rank} dimensions, found {len(grid)}",
            where=f"grid {' x '.join(map(str, grid))}",
            fix=f"give {rank} sizes",
        )
    return tuple(grid)


def _in_panels(
    nest: Schedule, variable: str, segments: int, panel: int, outer: str = "ko"
) -> Schedule:
    """Steps of `panel` values, each an equal share of all `segments` parts of `variable`.

    A part lies on one processor of a row and one of a column, so all give the same to each step.
    """
    extent = nest.extent(variable)
    if panel < 1 or panel % segments or extent % panel:
        raise ScheduleError(
            f"a panel of {panel} does not divide the {extent} values of k on a processor evenly"
            f" over {segments} pieces",
            where=f"panel={panel}",
            fix=f"use a multiple of {segments} that divides {extent}",
        )
    return (
        nest.divide(variable, "kb", "kr", segments)
        .split("kr", outer, "ki", panel // segments)
        .reorder(outer, "ii", "ji", "kb", "ki")
    )


def _rotated(nest: Schedule, inner: tuple[str, ...], by: str, *, both_ways: bool) -> Schedule:
    if not both_ways:
        return nest.reorder("io", *inner, "ii").rotate("io", (by,), "ios")
    nest = nest.divide("ii", "ih", "il", 2).reorder("io", "ih", *inner, "il")
    return nest.rotate("io", (by,), "ios", mirrored="ih")
