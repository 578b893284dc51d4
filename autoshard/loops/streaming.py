"""A product that is already cut, with its operands gathered in panels or passed round instead."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from autoshard.errors import ScheduleError
from autoshard.loops.distribution import Distribution
from autoshard.loops.placed import Placed, placed
from autoshard.loops.schedule import Schedule, schedule
from autoshard.loops.statement import Statement


def stream(
    statement: Statement,
    extents: Mapping[str, int],
    grid: Sequence[int],
    cut: Sequence[str],
    homes: Mapping[str, Distribution],
    *,
    over: str | None = None,
    panel: int | None = None,
) -> Placed:
    """The schedule of a statement whose variables are cut along a grid.

    Each tensor lives at its home. Operands are gathered where the cut needs more of them than a
    processor has: at once, or `panel` values of the variable `over` in each step, of which every
    processor gives an equal share. Only operands that have `over` are taken in steps.

    Args:
        statement: What is computed.
        extents: The range of each variable.
        grid: The sizes of the machine.
        cut: For each grid dimension the variable that it cuts; a variable may be named again, and
            is then cut further.
        homes: Of each tensor, blocked.
        over: A variable that is summed over.
        panel: How many of the values that a processor runs over make up one step.

    Raises:
        ScheduleError: Something does not divide, or `over` is no variable that is summed over.
        ShardingError: A home does not fit its tensor.
    """
    nest, local_by_variable = _cut_nest(statement, extents, grid, cut)
    last = nest.grid_loops[-1].variable
    tensors = [access.tensor for access in statement.accesses]
    if over is None or panel is None:
        return placed(nest.communicate(tensors, last), **homes)
    if over not in statement.summed:
        raise ScheduleError(
            f"steps run over a variable that is summed over, and {over} is not",
            where=str(statement),
            fix=f"use one of: {', '.join(statement.summed)}",
        )
    local = local_by_variable[over]
    segments = _segments(statement, homes, grid, over, [v == over for v in cut])
    extent = nest.extent(local)
    if panel < 1 or panel % segments or extent % panel:
        raise ScheduleError(
            f"a panel of {panel} does not divide the {extent} values of {over} on a processor"
            f" evenly over {segments} pieces",
            where=f"panel={panel}",
            fix=f"use a multiple of {segments} that divides {extent}",
        )
    nest = nest.divide(local, "piece", "rest", segments)
    nest = nest.split("rest", "step", "within", panel // segments)
    nest = _outermost(nest, "step")
    stepped = [a.tensor for a in statement.operands if over in a.indices]
    nest = nest.communicate([t for t in tensors if t not in stepped], last)
    return placed(nest.communicate(stepped, "step"), **homes)


def pass_round(
    statement: Statement,
    extents: Mapping[str, int],
    grid: Sequence[int],
    cut: Sequence[str],
    homes: Mapping[str, Distribution],
    *,
    over: str,
    rings: Sequence[int],
    moved: Sequence[str],
    both_ways: bool = False,
) -> Placed:
    """The schedule of a statement that is cut along a grid, in which pieces go round rings.

    The values of `over` on a processor fall into as many pieces as a ring has processors. In each
    step every processor works on another piece, and then hands it to its neighbour: a piece of an
    operand that all others want too, or of the result, to which each adds its share. With an
    operand and one ring it is an all-gather-matmul, with the result a matmul-reduce-scatter, with
    two operands and two rings Cannon's algorithm.

    Args:
        statement: What is computed.
        extents: The range of each variable.
        grid: The sizes of the machine.
        cut: For each grid dimension the variable that it cuts; see `stream`.
        homes: Of each tensor, blocked. At home one of `rings` cuts `over` of each tensor moved.
        over: The variable that steps run over.
        rings: Grid dimensions of one size, round which pieces go.
        moved: The tensors of which pieces go round.
        both_ways: Send half of each piece one way round and half the other.

    Raises:
        ScheduleError: Something does not divide, or rings differ in size.
        ShardingError: A home does not fit its tensor.
    """
    sizes = {grid[ring] for ring in rings}
    if len(sizes) != 1:
        raise ScheduleError(
            f"pieces go round rings of one size, and these have {', '.join(map(str, sizes))}",
            where=f"rings={tuple(rings)}",
            fix="name grid dimensions of one size",
        )
    nest, local_by_variable = _cut_nest(statement, extents, grid, cut)
    last = nest.grid_loops[-1].variable
    nest = nest.divide(local_by_variable[over], "piece", "within", sizes.pop())
    if both_ways:
        nest = nest.divide("within", "half", "rest", 2)
    nest = _outermost(nest, "piece", *(("half",) if both_ways else ()))
    around = [nest.grid_loops[ring].variable for ring in rings]
    nest = nest.rotate("piece", around, "turn", mirrored="half" if both_ways else None)
    staying = [a.tensor for a in statement.accesses if a.tensor not in moved]
    return placed(nest.communicate(staying, last).communicate(moved, "turn"), **homes)


def _cut_nest(
    statement: Statement, extents: Mapping[str, int], grid: Sequence[int], cut: Sequence[str]
) -> tuple[Schedule, dict[str, str]]:
    """The distributed loop nest, and for each variable the loop over a processor's values."""
    local = {variable: variable for variable in statement.variables}
    targets, outer, inner = [], [], []
    for place, variable in enumerate(cut):
        targets.append(local[variable])
        outer.append(f"{variable}_{place}")
        inner.append(f"{variable}_in{place}")
        local[variable] = inner[-1]
    nest = schedule(statement, **extents).distribute(targets, outer, inner, grid)
    return nest, local


def _outermost(nest: Schedule, *names: str) -> Schedule:
    """Put loops in time around all others."""
    times = [loop.variable for loop in nest.time_loops]
    return nest.reorder(*names, *(name for name in times if name not in names))


def _segments(
    statement: Statement,
    homes: Mapping[str, Distribution],
    grid: Sequence[int],
    over: str,
    is_cut: Sequence[bool],
) -> int:
    """The fewest equal pieces of `over` on a processor of which none is shared at any home."""
    pieces = 1
    for access in statement.operands:
        if over in access.indices:
            cuts = homes[access.tensor].cuts(access.indices.index(over))
            gathered = [grid[c.machine_dim] for c in cuts if not is_cut[c.machine_dim]]
            pieces = math.lcm(pieces, math.prod(gathered))
    return pieces
