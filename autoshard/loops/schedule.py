"""Schedules: a statement's loop nest, and the operations that reshape it.

A schedule is a value. Each operation gives a new one or refuses with a `ScheduleError`, so a
schedule that exists is legal:

    schedule("A(i,j) += B(i,k) * C(k,j)", i=8, j=8, k=8)
        .distribute(("i", "j"), ("io", "jo"), ("ii", "ji"), (2, 2))
        .divide("k", "ko", "ki", 2)
        .reorder("ko", "ii", "ji", "ki")
        .communicate("A", "jo")
        .communicate(("B", "C"), "ko")
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from autoshard.errors import ScheduleError
from autoshard.loops.legality import (
    check_divides,
    check_mirror,
    check_new,
    check_order,
    find_loop,
    find_time_loop,
    refuse,
)
from autoshard.loops.relations import Divide, Relation, Rotate, Split
from autoshard.loops.statement import Statement, parse_statement


@dataclass(frozen=True, slots=True)
class Loop:
    """One loop of the nest.

    Args:
        variable: What it counts in.
        extent: From 0 up to this.
        grid_dim: The dimension of the grid it is spread over; None for a loop in time.
    """

    variable: str
    extent: int
    grid_dim: int | None = None


@dataclass(frozen=True)
class Schedule:
    """A loop nest over a grid of processors; made by `schedule` and by its own methods.

    Args:
        statement: What the innermost loop does.
        extents: The range of each variable of the statement, in its order.
        loops: From the outside in; those over the grid come first.
        relations: How loops make up the variables, in the order they were asked for.
        grid: Its sizes; () before `distribute`.
        communicated: Tensor and the loop at whose beginning it is brought, in the order asked for.
    """

    statement: Statement
    extents: tuple[tuple[str, int], ...]
    loops: tuple[Loop, ...]
    relations: tuple[Relation, ...] = ()
    grid: tuple[int, ...] = ()
    communicated: tuple[tuple[str, str], ...] = ()

    # What the nest is made of.

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The range of each variable of the statement."""
        return dict(self.extents)

    @property
    def grid_loops(self) -> tuple[Loop, ...]:
        return tuple(loop for loop in self.loops if loop.grid_dim is not None)

    @property
    def time_loops(self) -> tuple[Loop, ...]:
        """The loops that each processor runs, from the outside in."""
        return tuple(loop for loop in self.loops if loop.grid_dim is None)

    def shape(self, tensor: str) -> tuple[int, ...]:
        return self.statement.shape(tensor, self.sizes)

    def communicated_at(self, tensor: str) -> str | None:
        """The loop at whose beginning `tensor` is brought; None where nobody said."""
        return dict(self.communicated).get(tensor)

    def depth(self, tensor: str) -> int:
        """How many time loops are around the place where `tensor` is brought.

        A tensor that nobody placed is brought, element by element, in the innermost loop.
        """
        at = self.communicated_at(tensor)
        names = [loop.variable for loop in self.time_loops]
        if at is None:
            return len(names)
        return names.index(at) + 1 if at in names else 0

    @property
    def deepest(self) -> int:
        """The number of time loops that are steps; what is further in is one local product."""
        return max(self.depth(access.tensor) for access in self.statement.accesses)

    @cached_property
    def relation_of(self) -> dict[str, Relation]:
        """For each variable that is no loop any more, what it is made of."""
        return {relation.variable: relation for relation in self.relations}

    def leaves(self, variable: str) -> tuple[tuple[str, int], ...]:
        """The digits a variable is written in, major first: variable and size.

        A digit is a loop, or a rotated variable, whose value depends on more loops than one.
        """
        relation = self.relation_of.get(variable)
        if relation is None or isinstance(relation, Rotate):
            return ((variable, self.extent(variable)),)
        return (*self.leaves(relation.outer), *self.leaves(relation.inner))

    def extent(self, variable: str) -> int:
        """The range of any variable: of the statement, of a loop, or in between."""
        for loop in self.loops:
            if loop.variable == variable:
                return loop.extent
        for relation in self.relations:
            match relation:
                case Divide() | Split():
                    if relation.outer == variable:
                        return relation.parts
                    if relation.inner == variable:
                        return relation.inner_extent
                case Rotate():
                    if relation.result == variable:
                        return relation.extent
        return self.sizes[variable]

    def value(self, variable: str, at: Mapping[str, Any]) -> Any:
        """The value of any variable where the loops it is made of have the values `at`."""
        if variable in at:
            return at[variable]
        relation = self.relation_of[variable]
        match relation:
            case Divide() | Split():
                parts: tuple[str, ...] = (relation.outer, relation.inner)
            case Rotate():
                mirror = () if relation.mirrored is None else (relation.mirrored,)
                parts = (relation.result, *relation.over, *mirror)
        return relation.value({name: self.value(name, at) for name in parts})

    def loops_of(self, variable: str) -> tuple[str, ...]:
        """The loops whose values decide that of `variable`."""
        relation = self.relation_of.get(variable)
        match relation:
            case None:
                return (variable,)
            case Divide() | Split():
                parts: tuple[str, ...] = (relation.outer, relation.inner)
            case Rotate():
                mirror = () if relation.mirrored is None else (relation.mirrored,)
                parts = (relation.result, *relation.over, *mirror)
        return tuple(dict.fromkeys(name for part in parts for name in self.loops_of(part)))

    # What can be done to it.

    def distribute(
        self,
        targets: Sequence[str],
        dist: Sequence[str],
        local: Sequence[str],
        grid: Sequence[int],
    ) -> Schedule:
        """Spread loops over a grid: `dist[n]` runs over grid dimension `n`, `local[n]` inside.

        Each target is divided into as many parts as its grid dimension has processors; the outer
        halves become the outermost loops, the inner halves follow. To cut one loop along two
        dimensions, let the second target be the inner half of the first.

        Raises:
            ScheduleError: The lists differ in length, the schedule is distributed already, a target
                is no loop, a name is taken, or a grid dimension does not divide its target.
        """
        if self.grid:
            refuse(
                "the schedule is distributed already",
                f"distribute({', '.join(targets)})",
                "name all loops to distribute in one call",
            )
        lengths = {len(targets), len(dist), len(local), len(grid)}
        if len(lengths) > 1 or not grid:
            refuse(
                f"distribute has {len(targets)} targets, {len(dist)} outer and {len(local)} inner"
                f" names for a grid of {len(grid)} dimensions",
                f"distribute({', '.join(targets)})",
                "give one of each for every dimension of the grid",
            )
        result = self
        for target, outer, inner, size in zip(targets, dist, local, grid, strict=True):
            result = result.divide(target, outer, inner, size)
        by_name = {loop.variable: loop for loop in result.loops}
        spread = [replace(by_name[name], grid_dim=place) for place, name in enumerate(dist)]
        first = [*spread, *(by_name[name] for name in local if name in by_name)]
        names = {loop.variable for loop in first}
        rest = [loop for loop in result.loops if loop.variable not in names]
        return replace(result, loops=(*first, *rest), grid=tuple(grid))

    def divide(self, variable: str, outer: str, inner: str, parts: int) -> Schedule:
        """Cut a loop into `parts` equal parts: `outer` counts the parts, `inner` runs in one.

        Raises:
            ScheduleError: It is no loop or runs over the grid, a name is taken, or `parts` does not
                divide its range.
        """
        where = f"divide({variable}, {outer}, {inner}, {parts})"
        loop = find_time_loop(self, variable, where)
        check_divides(loop, parts, "parts", where)
        relation = Divide(variable, outer, inner, parts, loop.extent // parts)
        return self._cut(loop, relation, where)

    def split(self, variable: str, outer: str, inner: str, size: int) -> Schedule:
        """Cut a loop into parts of `size`: `outer` counts the parts, `inner` runs in one.

        Raises:
            ScheduleError: It is no loop or runs over the grid, a name is taken, or `size` does not
                divide its range.
        """
        where = f"split({variable}, {outer}, {inner}, {size})"
        loop = find_time_loop(self, variable, where)
        check_divides(loop, size, "turns at a time", where)
        relation = Split(variable, outer, inner, size, loop.extent // size)
        return self._cut(loop, relation, where)

    def reorder(self, *variables: str) -> Schedule:
        """Put these loops, in this order, where they stand now; the others stay.

        Raises:
            ScheduleError: One is no loop, is named twice, or would leave its place outside the
                loops that need it: loops over the grid stay outermost, and a rotated loop stays
                inside those it is rotated by.
        """
        where = f"reorder({', '.join(variables)})"
        for name in variables:
            find_loop(self, name, where)
        if len(set(variables)) < len(variables):
            refuse("a loop is named twice", where, "name each loop once")
        by_name = {loop.variable: loop for loop in self.loops}
        wanted = iter(variables)
        loops = tuple(
            by_name[next(wanted)] if loop.variable in variables else loop for loop in self.loops
        )
        result = replace(self, loops=loops)
        check_order(result, where)
        return result

    def communicate(self, tensors: str | Iterable[str], at: str) -> Schedule:
        """Bring what the inside of loop `at` needs of each tensor at the beginning of each turn.

        Of the result, take what the inside has added, at the end of each turn.

        Raises:
            ScheduleError: A tensor is unknown or was communicated before; `at` is no loop, or a
                loop over the grid with another such loop inside.
        """
        names = (tensors,) if isinstance(tensors, str) else tuple(tensors)
        result = self
        for tensor in names:
            result = result._communicate_one(tensor, at)
        return result

    def _communicate_one(self, tensor: str, at: str) -> Schedule:
        where = f"communicate({tensor}, {at})"
        self.statement.access(tensor)
        loop = find_loop(self, at, where)
        before = self.communicated_at(tensor)
        if before is not None:
            refuse(
                f"tensor {tensor} is communicated at {before} already",
                where,
                "say once for each tensor where it is communicated",
            )
        inner = self.grid_loops[-1].variable if self.grid_loops else None
        if loop.grid_dim is not None and at != inner:
            refuse(
                f"loop {at} does not enclose the work of one processor: {inner} is spread over the"
                " grid inside it",
                where,
                f"communicate at {inner}, the last loop over the grid, or further in",
            )
        return replace(self, communicated=(*self.communicated, (tensor, at)))

    def rotate(
        self, target: str, over: Sequence[str], result: str, *, mirrored: str | None = None
    ) -> Schedule:
        """Let each processor begin the loop `target` at another turn.

        Loop `result` takes the place of `target`, and
        `target = (result + sum of over) mod extent`: at the same turn of `result`, neighbours along
        any loop of `over` are at neighbouring turns of `target`, so that what one has used its
        neighbour can use next.

        Args:
            target: A time loop.
            over: Loops around it.
            result: A new name.
            mirrored: A loop of two turns, cut from the same variable as `target`; in its second
                turn the rotation runs backwards. Two streams then use both directions of a ring.

        Raises:
            ScheduleError: `target` or one of `over` is no loop, `target` runs over the grid, one of
                `over` is not around it, the name is taken, or `mirrored` does not fit.
        """
        where = f"rotate({target}, {{{', '.join(over)}}}, {result})"
        loop = find_time_loop(self, target, where)
        if not over:
            refuse("nothing to rotate by", where, "name at least one loop around it")
        order = [other.variable for other in self.loops]
        for name in over:
            find_loop(self, name, where)
            if order.index(name) >= order.index(target):
                refuse(
                    f"loop {name} is not around {target}, so its value is not known there",
                    where,
                    f"reorder {target} to the inside of {name} first",
                )
        check_new(self, (result,), where)
        if mirrored is not None:
            check_mirror(self, target, mirrored, where)
        relation = Rotate(target, tuple(over), result, loop.extent, mirrored)
        loops = tuple(
            replace(other, variable=result) if other == loop else other for other in self.loops
        )
        return replace(
            self,
            loops=loops,
            relations=(*self.relations, relation),
            communicated=tuple(
                (tensor, result if at == target else at) for tensor, at in self.communicated
            ),
        )

    def _cut(self, loop: Loop, relation: Divide | Split, where: str) -> Schedule:
        check_new(self, (relation.outer, relation.inner), where)
        at = self.communicated_at_loop(loop.variable)
        if at:
            refuse(
                f"tensor {at[0]} is communicated at {loop.variable}, which would be cut",
                where,
                "cut loops first and communicate afterwards",
            )
        halves = (
            Loop(relation.outer, relation.parts),
            Loop(relation.inner, relation.inner_extent),
        )
        place = self.loops.index(loop)
        loops = (*self.loops[:place], *halves, *self.loops[place + 1 :])
        return replace(self, loops=loops, relations=(*self.relations, relation))

    def communicated_at_loop(self, variable: str) -> tuple[str, ...]:
        """The tensors brought at the beginning of this loop's turns."""
        return tuple(tensor for tensor, at in self.communicated if at == variable)


def schedule(statement: str | Statement, **extents: int) -> Schedule:
    """The plain loop nest of a statement, before anything is distributed.

    Args:
        statement: In index notation.
        extents: The range of each of its variables.

    Raises:
        ScheduleError: The text is no statement, or a variable has no range, or a range no variable.
    """
    parsed = parse_statement(statement) if isinstance(statement, str) else statement
    for name in parsed.variables:
        if name not in extents:
            raise ScheduleError(
                f"variable {name} has no range",
                where=str(parsed),
                fix=f"give it, as in schedule(..., {name}=8)",
            )
    for name, extent in extents.items():
        if name not in parsed.variables:
            raise ScheduleError(
                f"the statement has no variable {name}",
                where=str(parsed),
                fix=f"its variables are: {', '.join(parsed.variables)}",
            )
        if extent < 1:
            raise ScheduleError(
                f"variable {name} has the range {extent}, which is below 1",
                where=str(parsed),
                fix="give it at least one value",
            )
    ordered = tuple((name, extents[name]) for name in parsed.variables)
    return Schedule(parsed, ordered, tuple(Loop(name, extent) for name, extent in ordered))
