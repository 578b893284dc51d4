"""A schedule for one `dot_general`, in names of mesh axes: what a plan keeps and `apply` runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autoshard.errors import ScheduleError
from autoshard.loops import (
    Access,
    Distribution,
    Placed,
    Statement,
    parse_statement,
    pass_round,
    stream,
)
from autoshard.sharding import Mesh, Sharding

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True, kw_only=True)
class DotSchedule:
    """A product that is cut over a mesh and runs in steps.

    Args:
        statement: `A(a,b) += B(a,c) * C(c,b)`, named as by `with_plain_names`.
        homes: Of the result and the operands, in this order: where each of them lies.
        grid: Mesh axes, in the order in which they cut.
        cut: For each of them, the variable of the statement that it cuts.
        over: The variable that steps run over.
        panel: How many of the values of `over` on a device make up one step.
        num_steps: How many steps there are.
        rings: Mesh axes round which pieces are passed; none where panels are gathered.
        moved: Tensors of which pieces go round: `C` or `B` in a collective matmul, `A` where its
            sums do, `BC` in Cannon's algorithm.
        both_ways: Whether half of each piece goes one way round and half the other.
    """

    statement: str
    homes: tuple[Sharding, ...]
    grid: tuple[str, ...]
    cut: tuple[str, ...]
    over: str
    panel: int
    num_steps: int
    rings: tuple[str, ...] = ()
    moved: str = ""
    both_ways: bool = False

    def __str__(self) -> str:
        cut = ", ".join(f"{v} by {axis}" for v, axis in zip(self.cut, self.grid, strict=True))
        steps = f"in {self.num_steps} steps of {self.panel} {self.over}, {cut}"
        if not self.rings:
            return f"{self.statement} {steps}"
        ways = " both ways" if self.both_ways else ""
        return f"{self.statement} with {self.moved} round {' and '.join(self.rings)}{ways} {steps}"

    @property
    def algorithm(self) -> str:
        """Its name: `summa in panels`, `all-gather-matmul`, `matmul-reduce-scatter`, `cannon`."""
        if not self.rings:
            return "summa in panels"
        if len(self.moved) > 1:
            return "cannon"
        return "matmul-reduce-scatter" if self.moved == "A" else "all-gather-matmul"

    def made_in(self, order: Sequence[int]) -> DotSchedule:
        """The same product with the dimensions of its result in another order.

        Args:
            order: Of the dimensions as they are, as `numpy.transpose` takes it.
        """
        statement = parse_statement(self.statement)
        result, (home, *homes) = statement.result, self.homes
        turned = replace(result, indices=tuple(result.indices[dim] for dim in order))
        return replace(
            self,
            statement=str(replace(statement, result=turned)),
            homes=(replace(home, dims=tuple(home.dims[dim] for dim in order)), *homes),
        )

    def problems(self, mesh: Mesh) -> list[str]:
        """What keeps it from being a schedule on a mesh, whatever the sizes of the product."""
        try:
            statement = parse_statement(self.statement)
        except ScheduleError as error:
            return [f"`statement`: {error.what}"]
        found = [
            f"`grid`: the mesh has no axis {axis!r}" for axis in self.grid if axis not in mesh.sizes
        ]
        if len(set(self.grid)) < len(self.grid):
            found.append("`grid`: names an axis twice")
        if len(self.cut) != len(self.grid):
            found.append(f"`cut`: has {len(self.cut)} variables for {len(self.grid)} axes")
        found += [
            f"`cut`: the statement has no variable {variable!r}"
            for variable in self.cut
            if variable not in statement.variables
        ]
        found += self._ring_problems(statement, mesh)
        ranks = [len(access.indices) for access in statement.accesses]
        if [home.rank for home in self.homes] != ranks:
            found.append(f"`homes`: do not have the ranks {ranks} of the tensors")
        elif any(
            not ref.is_whole or ref.name not in self.grid
            for home in self.homes
            for ref in home.axis_refs()
        ):
            found.append("`homes`: are cut by more than whole axes of `grid`")
        if self.panel < 1 or self.num_steps < 1:
            found.append("`panel`, `num_steps`: are below 1")
        return found

    def _ring_problems(self, statement: Statement, mesh: Mesh) -> list[str]:
        if not self.rings and not self.moved:
            is_summed = self.over in statement.summed
            return [] if is_summed else [f"`over`: {self.over!r} is not summed over"]
        found = [
            f"`rings`: {axis!r} is no axis of `grid`"
            for axis in self.rings
            if axis not in self.grid
        ]
        if self.moved not in {"A", "B", "C", "BC"} or len(self.rings) != len(self.moved):
            found.append(f"`moved`: {self.moved!r} cannot go round {len(self.rings)} rings")
            return found
        found += [
            f"`over`: {tensor} has no dimension {self.over!r}"
            for tensor in self.moved
            if self.over not in statement.access(tensor).indices
        ]
        found += [
            f"`num_steps`: is {self.num_steps}; expected {mesh.sizes[axis]}, the size of {axis!r}"
            for axis in self.rings
            if mesh.sizes.get(axis, self.num_steps) != self.num_steps
        ]
        return found

    def placed(self, extents: Mapping[str, int], mesh: Mesh) -> Placed:
        """The schedule in the language of `autoshard.loops`.

        Args:
            extents: The range of each variable.
            mesh: Gives the sizes of the axes.

        Raises:
            ScheduleError: Something does not divide.
            ShardingError: A home does not fit its tensor.
        """
        statement = parse_statement(self.statement)
        place = {axis: index for index, axis in enumerate(self.grid)}
        homes = {
            access.tensor: Distribution.by_cuts(
                access.tensor,
                access.indices,
                tuple(tuple(place[ref.name] for ref in dim.axes) for dim in home.dims),
                len(self.grid),
            )
            for access, home in zip(statement.accesses, self.homes, strict=True)
        }
        sizes = [mesh.sizes[axis] for axis in self.grid]
        if not self.rings:
            return stream(
                statement, extents, sizes, self.cut, homes, over=self.over, panel=self.panel
            )
        return pass_round(
            statement,
            extents,
            sizes,
            self.cut,
            homes,
            over=self.over,
            rings=[place[axis] for axis in self.rings],
            moved=tuple(self.moved),
            both_ways=self.both_ways,
        )


def with_plain_names(statement: Statement) -> Statement:
    """The statement with variables called `a`, `b`, ... and tensors `A`, `B`, `C` as they come."""
    letters = dict(zip(statement.variables, _LETTERS, strict=False))
    return plain_statement(
        [[letters[name] for name in access.indices] for access in statement.accesses]
    )


def plain_statement(indices: Sequence[Sequence[str]]) -> Statement:
    """A statement of these indices: those of the result, then those of each operand."""
    result, *operands = [
        Access(tensor, tuple(names)) for tensor, names in zip("ABCD", indices, strict=False)
    ]
    return Statement(result, tuple(operands))
