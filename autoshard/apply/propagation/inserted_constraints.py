"""Constraints put into a program for one propagation, and taken out again."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from autoshard.apply.flat_module import (
    FlatModule,
    MlirOp,
    MlirValue,
    Place,
    block_of,
    is_inside,
    tensor_shape,
)
from autoshard.apply.propagation.sharding_attributes import ShardingAttributes
from autoshard.apply.propagation.use_readers import Reader, UseReaders, no_such_path
from autoshard.sharding import Sharding
from autoshard.use_paths import split_uses


@dataclass(frozen=True, slots=True)
class Opened:
    """A value that may be cut otherwise inside a loop.

    Args:
        value: As the program has it, without constraints that were put behind it.
        loop: The outermost one that reads it from outside.
        readers: In the loop: ops and operand numbers.
        constraint: That says so.
    """

    value: MlirValue
    loop: MlirOp
    readers: tuple[Reader, ...]
    constraint: MlirOp

    def is_seen_at(self, place: Place) -> bool:
        """True for a path that reads the value inside the loop, behind this constraint."""
        return (
            self.value == place.value
            and any(is_inside(place.block, region.blocks[0]) for region in self.loop.regions)
            and (not place.readers or any(reader in self.readers for reader in place.readers))
        )


@dataclass(frozen=True, slots=True)
class InsertedConstraints:
    """What was put into a program.

    Args:
        flat: The program.
        uses: Of its values.
        attributes: Of shardings.

    Attributes:
        at_path: The constraint on each value that got one, by path.
        opened: Values that may be cut otherwise inside a loop.
    """

    flat: FlatModule
    uses: UseReaders
    attributes: ShardingAttributes
    at_path: dict[str, MlirOp] = field(default_factory=dict)
    opened: list[Opened] = field(default_factory=list)
    _constraints: list[MlirOp] = field(default_factory=list)

    def insert(self, constraints: Mapping[str, Sharding]) -> None:
        """Constrain values, and single uses of them, by path.

        Raises:
            PlanError: The program has no such path.
            ShardingError: A sharding that its value or the mesh does not admit.
        """
        places = self.flat.places
        unknown = [path for path in constraints if path not in places and "<" not in path]
        if unknown:
            raise no_such_path(unknown[0])
        # In program order: where several paths name a value, each sees what the one before made,
        # and what a loop body reads comes behind what the loop reads.
        for path in sorted(constraints, key=program_order):
            sharding = constraints[path]
            if path not in places:
                self._constrain_use(path, sharding)
                continue
            attribute = self.attributes.of(sharding, tensor_shape(places[path].value), path)
            for place in reversed(places[path].all):
                if place.readers:
                    self.at_path[path] = self._constrain(place.readers, place.block, attribute)

    def open_loops(self, sharded: Sequence[MlirValue]) -> None:
        """As XLA does: a sharded value that a loop reads from outside may differ inside.

        Args:
            sharded: Values with a sharding, besides those constrained here.
        """
        for value in (*sharded, *(op.results[0] for op in self._constraints)):
            home = block_of(value)
            by_loop: dict[MlirOp, list[Reader]] = {}
            for use in list(value.uses):
                user = use.owner.operation
                loop = _outermost_loop(user, home)
                if loop is not None:
                    by_loop.setdefault(loop, []).append((user, use.operand_number))
            for loop, readers in by_loop.items():
                shape = tensor_shape(value)
                says_nothing = self.attributes.of(Sharding.fully_open(len(shape)), shape, "a loop")
                at = ir.InsertionPoint(loop)
                made = self._put(value, says_nothing, at, readers)
                self.opened.append(Opened(self._before(value), loop, tuple(readers), made))

    def undo(self) -> None:
        """Take all of it out."""
        for op in reversed(self._constraints):
            op.results[0].replace_all_uses_with(op.operands[0])
            op.erase()

    def _constrain_use(self, use: str, sharding: Sharding) -> None:
        for copy in range(self.uses.num_copies(use)):
            readers = self.uses.of(use, copy)
            if readers:
                op, number = readers[0]
                attribute = self.attributes.of(sharding, tensor_shape(op.operands[number]), use)
                self._constrain(readers, self.uses.block_of(use, copy), attribute)

    def _constrain(self, readers: Sequence[Reader], block: Any, attribute: Any) -> MlirOp:
        """Put a constraint between a value and the operands given, which read it in `block`."""
        op, number = readers[0]
        value = op.operands[number]
        is_made_here = not isinstance(value.owner, ir.Block) and block_of(value) == block
        at = (
            ir.InsertionPoint.after(value.owner.operation)
            if is_made_here
            else ir.InsertionPoint.at_block_begin(block)
        )
        return self._put(value, attribute, at, readers)

    def _before(self, value: MlirValue) -> MlirValue:
        """The value of the program behind which constraints were put."""
        while not isinstance(value.owner, ir.Block) and value.owner.operation in self._constraints:
            value = value.owner.operation.operands[0]
        return value

    def _put(self, value: MlirValue, attribute: Any, at: Any, readers: Sequence[Reader]) -> MlirOp:
        made = sdy.ShardingConstraintOp(value, attribute, ip=at).operation
        self._constraints.append(made)
        for op, number in readers:
            if op.operands[number] == value:
                op.operands[number] = made.results[0]
        return made


def program_order(path: str) -> tuple[tuple[float, int, str, float, float], ...]:
    """Paths sorted as a program gets to them.

    Of an equation: its reads, each behind the stops on its way (`38<1~0`), then what its bodies
    hold, then what it makes.
    """
    return tuple(map(_step_order, split_uses(path)[0].split("/")))


def _step_order(step: str) -> tuple[float, int, str, float, float]:
    equation, separator, read = step.partition("<")
    if separator:
        operand, _, stop = read.partition("~")
        at = math.inf if equation == "out" else float(equation)
        return at, 0, "", float(operand), float(stop or math.inf)
    equation, _, inside = step.partition(".")
    at = {"const": -2.0, "in": -1.0}.get(equation) or float(equation)
    if inside.isdigit():
        return at, 2, "", float(inside), 0.0
    return at, 1, inside, 0.0, 0.0


def _outermost_loop(user: MlirOp, home: Any) -> MlirOp | None:
    """The outermost loop around an op within block `home`."""
    found = None
    while user.block != home:
        user = user.block.owner.operation
        if user.name == "stablehlo.while":
            found = user
    return found
