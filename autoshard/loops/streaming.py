"""A product that is already cut, with its operands gathered in panels instead of at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from autoshard.errors import ScheduleError
from autoshard.loops.distribution import Distribution
from autoshard.loops.placed import Placed, placed
from autoshard.loops.schedule import schedule
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
    names: dict[str, list[str]] = {}
    targets, outer, inner = [], [], []
    for place, variable in enumerate(cut):
        parts = names.setdefault(variable, [variable])
        targets.append(parts[-1])
        outer.append(f"{variable}_{place}")
        inner.append(f"{variable}_in{place}")
        parts.append(inner[-1])
    nest = schedule(statement, **extents).distribute(targets, outer, inner, grid)
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
    local = names.get(over, [over])[-1]
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
    times = [loop.variable for loop in nest.time_loops]
    nest = nest.reorder("step", *(name for name in times if name != "step"))
    stepped = [a.tensor for a in statement.operands if over in a.indices]
    nest = nest.communicate([t for t in tensors if t not in stepped], last)
    return placed(nest.communicate(stepped, "step"), **homes)


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
