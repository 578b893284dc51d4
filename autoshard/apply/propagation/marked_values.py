"""Marks on the ops of a program, by which its values are found again after passes have run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.passmanager import PassManager

from autoshard.apply.flat_module import FlatModule, MlirOp, MlirValue, Place, tensor_shape
from autoshard.apply.nested_ops import operations_of
from autoshard.apply.propagation.inserted_constraints import InsertedConstraints, program_order
from autoshard.apply.propagation.use_readers import Reader
from autoshard.mlir_modules import number_of, on_its_level

_MARK = "autoshard_mark"


@dataclass(frozen=True, slots=True)
class Reading:
    """Where a path's sharding stands after the passes: op by mark, and which of its values."""

    mark: int
    index: int
    rank: int
    is_argument: bool = False


@dataclass(frozen=True, slots=True)
class Readings:
    """Where the shardings of all paths stand, and how many ops are marked for it.

    Args:
        by_path: Where each stands first.
        copies: Where it stands again, as the body of a loop does that is unrolled.
        num_marks: Of ops.
    """

    by_path: dict[str, Reading]
    copies: Mapping[str, tuple[Reading, ...]]
    num_marks: int


class MarkedValues:
    """Marks the op of every named value.

    Args:
        flat: The program; its ops keep the marks.
    """

    def __init__(self, flat: FlatModule) -> None:
        self._flat = flat
        self._readings = _mark_places(flat)
        self._from_outside: list[tuple[str, Place]] = []
        inside: list[tuple[str, Place]] = []
        for path, place in flat.places.items():
            (self._from_outside if place.is_from_outside else inside).append((path, place))
        self._paths_of_one_value = _paths_of_one_value(inside)

    def copied_paths(self) -> Iterator[str]:
        """Paths of what Shardy copies for each reader, so that the copies may differ."""
        copy = self._flat.module.operation.clone()
        PassManager.parse(f"builtin.module({on_its_level('sdy-constant-or-scalar-splitter')})").run(
            copy
        )
        times_seen = [0] * self._readings.num_marks

        def visit(op: MlirOp) -> ir.WalkResult:
            if _MARK in op.attributes:
                times_seen[ir.IntegerAttr(op.attributes[_MARK]).value] += 1
            return ir.WalkResult.ADVANCE

        copy.walk(visit, ir.WalkOrder.PRE_ORDER)
        for path, reading in self._readings.by_path.items():
            if times_seen[reading.mark] > 1:
                yield path

    def readings_with(self, inserted: InsertedConstraints) -> Readings:
        """Where to read what a loop body reads from outside, which may have its own constraint."""
        readings = dict(self._readings.by_path)
        first = self._readings.num_marks
        marks: dict[MlirValue, int] = {}

        def read_at(path: str, op: MlirOp) -> None:
            mark = marks.setdefault(op.results[0], first + len(marks))
            op.attributes[_MARK] = _mark_attribute(mark)
            readings[path] = Reading(mark, 0, readings[path].rank)

        for path, behind in self._behind_constraints(inserted):
            read_at(path, behind)
        for path, place in self._from_outside:
            if path in inserted.at_path:
                read_at(path, inserted.at_path[path])
                continue
            for opened in inserted.opened:
                if opened.is_seen_at(place):
                    read_at(path, opened.constraint)
        return Readings(readings, self._readings.copies, first + len(marks))

    def _behind_constraints(self, inserted: InsertedConstraints) -> Iterator[tuple[str, MlirOp]]:
        """Paths that name a value behind a constraint at an earlier path, and where to read them.

        What a call returns is what its body made, behind what was put there.
        """
        for paths in self._paths_of_one_value:
            made: list[tuple[MlirOp, tuple[Reader, ...]]] = []  # latest first
            for path in paths:
                readers = self._flat.places[path].readers
                own = inserted.at_path.get(path)
                before = next((op for op, its in made if any(r in its for r in readers)), None)
                if before is not None:
                    yield path, before if own is None else own
                if own is not None:
                    made.insert(0, (own, readers))


def find_marked(module: MlirOp, num_marks: int) -> tuple[MlirOp, list[MlirOp | None]]:
    """The function called main, and the ops that have a mark, by mark."""
    ops: list[MlirOp | None] = [None] * num_marks
    main: MlirOp | None = None

    def visit(op: MlirOp) -> ir.WalkResult:
        nonlocal main
        attributes = op.attributes
        if _MARK in attributes:
            mark = ir.IntegerAttr(attributes[_MARK]).value
            known = ops[mark]
            # Constants are copied for each reader, and the one copied may be left unread.
            if known is None or not any(True for _ in known.results[0].uses):
                ops[mark] = op
        if op.name == "func.func" and ir.StringAttr(attributes["sym_name"]).value == "main":
            main = op
        return ir.WalkResult.ADVANCE

    module.walk(visit, ir.WalkOrder.PRE_ORDER)
    assert main is not None
    return main, ops


def remove_marks(module: MlirOp) -> None:
    """Leave no trace in a module."""
    for op in operations_of(module):
        if _MARK in op.attributes:
            del op.attributes[_MARK]


def _mark_places(flat: FlatModule) -> Readings:
    marks: dict[MlirOp, int] = {}

    def reading(place: Place) -> Reading:
        owner = place.value.owner
        is_argument = isinstance(owner, ir.Block)
        op = owner.owner.operation if is_argument else owner.operation
        mark = marks.setdefault(op, len(marks))
        return Reading(mark, number_of(place.value), len(tensor_shape(place.value)), is_argument)

    readings = {path: reading(place) for path, place in flat.places.items()}
    copies = {
        path: tuple(reading(copy) for copy in place.copies if not copy.is_from_outside)
        for path, place in flat.places.items()
        if place.copies
    }
    for op, mark in marks.items():
        op.attributes[_MARK] = _mark_attribute(mark)
    return Readings(readings, copies, len(marks))


def _mark_attribute(mark: int) -> Any:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), mark)


def _paths_of_one_value(inside: Iterable[tuple[str, Place]]) -> list[list[str]]:
    """Paths of one value, two or more, in program order; of those that see it where it is made."""
    by_value: dict[MlirValue, list[str]] = {}
    for path, place in inside:
        by_value.setdefault(place.value, []).append(path)
    return [sorted(paths, key=program_order) for paths in by_value.values() if len(paths) > 1]
