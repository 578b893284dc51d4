"""What the operations of a schedule may be asked for, and what they refuse."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NoReturn

from autoshard.errors import ScheduleError
from autoshard.loops.relations import Rotate

if TYPE_CHECKING:
    from autoshard.loops.schedule import Loop, Schedule


def check_mirror(nest: Schedule, target: str, mirrored: str, where: str) -> None:
    loop = find_loop(nest, mirrored, where)
    if loop.extent != 2 or loop.grid_dim is not None:
        refuse(
            f"loop {mirrored} has {loop.extent} turns, and a mirrored rotation needs two",
            where,
            f"divide a loop into 2 parts and name the outer one {mirrored}",
        )
    if _root(nest, mirrored) != _root(nest, target):
        refuse(
            f"loops {mirrored} and {target} are cut from different variables",
            where,
            "mirror by a loop that is cut from the same variable",
        )


def _root(nest: Schedule, variable: str) -> str:
    for name in nest.sizes:
        if variable in {leaf for leaf, _ in nest.leaves(name)}:
            return name
    return variable


def check_divides(loop: Loop, number: int, what: str, where: str) -> None:
    if number < 1 or loop.extent % number:
        fits = math.ceil(loop.extent / number) * number if number >= 1 else loop.extent
        refuse(
            f"loop {loop.variable} has {loop.extent} turns, which {number} {what} do not divide",
            where,
            f"pad it to {fits}, or use a divisor of {loop.extent}",
        )


def check_new(nest: Schedule, names: tuple[str, ...], where: str) -> None:
    taken = {loop.variable for loop in nest.loops} | set(nest.sizes) | set(nest.relation_of)
    for at, name in enumerate(names):
        if name in taken or name in names[:at] or not name.isidentifier():
            what = "is taken" if name.isidentifier() else "is no name"
            refuse(f"{name!r} {what}", where, "choose a new name for each new loop")


def check_order(nest: Schedule, where: str) -> None:
    is_grid = [loop.grid_dim is not None for loop in nest.loops]
    if is_grid != sorted(is_grid, reverse=True):
        place = is_grid.index(False)
        moved = next(loop for loop in nest.loops[place:] if loop.grid_dim is not None)
        refuse(
            f"loop {nest.loops[place].variable} would stand outside {moved.variable}, which"
            " runs over the grid",
            where,
            "keep the loops over the grid outermost: each processor runs its own time",
        )
    order = {loop.variable: place for place, loop in enumerate(nest.loops)}
    for relation in nest.relations:
        if not isinstance(relation, Rotate):
            continue
        first = min(order[name] for name in nest.loops_of(relation.result))
        for name in relation.over:
            if max(order[part] for part in nest.loops_of(name)) > first:
                refuse(
                    f"loop {relation.result} would stand outside {name}, by which it is rotated",
                    where,
                    f"keep {relation.result} inside {', '.join(relation.over)}",
                )


def find_loop(nest: Schedule, name: str, where: str) -> Loop:
    for loop in nest.loops:
        if loop.variable == name:
            return loop
    relation = nest.relation_of.get(name)
    if isinstance(relation, Rotate):
        what = f"{name} is no loop any more: it was rotated into {relation.result}"
        fix = f"use {relation.result}"
    elif relation is not None:
        what = f"{name} is no loop any more: it was cut into {relation.outer} and {relation.inner}"
        fix = f"use {relation.outer} or {relation.inner}"
    else:
        what = f"there is no loop {name}"
        fix = f"the loops are: {', '.join(loop.variable for loop in nest.loops)}"
    raise ScheduleError(what, where=where, fix=fix)


def find_time_loop(nest: Schedule, name: str, where: str) -> Loop:
    loop = find_loop(nest, name, where)
    if loop.grid_dim is not None:
        refuse(
            f"loop {name} runs over dimension {loop.grid_dim} of the grid, not over time",
            where,
            "use a loop that each processor runs by itself",
        )
    return loop


def refuse(what: str, where: str, fix: str) -> NoReturn:
    raise ScheduleError(what, where=where, fix=fix)
