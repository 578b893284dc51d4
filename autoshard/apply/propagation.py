"""Shardy's own propagation, in process: what the compiler makes of a set of constraints."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax  # noqa: F401  (importing it registers Shardy's passes)
from jax._src.interpreters import mlir as jax_mlir  # checked on jax 0.10.2
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy
from jaxlib.mlir.passmanager import PassManager

from autoshard.apply.flat_module import (
    FlatModule,
    MlirOp,
    MlirValue,
    Place,
    block_of,
    equation_of,
    flatten_module,
    is_inside,
)
from autoshard.apply.module_meshes import ModuleMeshes
from autoshard.apply.nested_ops import operations_of
from autoshard.apply.write_sharding import write_sharding
from autoshard.errors import ExportError, PlanError, ShardingError
from autoshard.frontend.op_kinds import FREE_IF_OPERANDS_FREE, FREE_SOURCES
from autoshard.sharding import (
    Mesh,
    Sharding,
    check_sharding,
)

_MARK = "autoshard_mark"
_USE = re.compile(r"(.*)<(\d+)(?:~(\d+))?$")
_PASSES = (
    "sdy-constant-or-scalar-splitter",
    "symbol-dce",
    "sdy-manual-axes-cleanup",
    "sdy-add-data-flow-edges",
    "sdy-apply-sharding-constraints",
    "sdy-sharding-group-import",
    "sdy-user-priority-propagate{propagation-strategy=aggressive run-op-priority-propagation=true}",
    "sdy-propagate-to-func-results",
    "func.func(sdy-sink-data-flow-edges)",
)
"""The propagation pipeline of Shardy as XLA runs it, without what it does afterwards to export."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """Where a path's sharding stands after the passes: op by mark, and which of its values."""

    mark: int
    index: int
    rank: int
    is_argument: bool = False


@dataclass(slots=True)
class _Edits:
    """What was put into the module for one propagation, to be taken out again."""

    constraints: list[MlirOp] = field(default_factory=list)
    at_path: dict[str, MlirOp] = field(default_factory=dict)
    opened: list[tuple[MlirValue, MlirOp, MlirOp]] = field(default_factory=list)

    def undo(self) -> None:
        for op in reversed(self.constraints):
            op.results[0].replace_all_uses_with(op.operands[0])
            op.erase()


class Propagator:
    """Propagates shardings through one program, as often as asked.

    The program is parsed and made flat once; each call puts the given shardings into it, runs
    Shardy's passes on a copy, and reads where every named value ended up. Nothing is compiled.

    `chlo` ops get the rule of what XLA expands them to, except erf: XLA's form of it has no rule,
    so propagation stops there, here as in XLA.

    Args:
        module: Tagged StableHLO, bytecode or text, locations included.
        mesh: The mesh of all shardings given and returned, except for those that carry another one
            over the same devices because its axes cannot say them.
        num_arguments: Flat arguments of the function, `in.0`, ...; arguments of `main` before
            those are arrays the function closes over, `const.0`, ... By default there are none.
        operand_paths: By equation path, the path of each operand, and by `7.jaxpr/out` those of the
            results of a body. Needed for constraints on single uses.

    Attributes:
        mesh: As given.
        free_paths: Constants and what is made of them alone. Each reader has its own copy of them,
            cut as it likes, so they have no one sharding.

    Raises:
        ExportError: The module does not parse or has no `main`.
    """

    def __init__(
        self,
        module: bytes | str,
        mesh: Mesh,
        *,
        num_arguments: int | None = None,
        operand_paths: Mapping[str, Sequence[str | None]] | None = None,
    ) -> None:
        self.mesh = mesh
        self._operand_paths = dict(operand_paths or {})
        self._context = jax_mlir.make_ir_context()
        self._attribute_by_sharding: dict[tuple[Sharding, int], Any] = {}
        self._sharding_by_attribute: dict[Any, Sharding] = {}
        self._uses: dict[str, tuple[tuple[MlirOp, int], ...]] = {}
        with self._context, ir.Location.unknown():
            try:
                parsed = ir.Module.parse(module)
            except ir.MLIRError as error:
                raise ExportError(
                    f"the StableHLO module does not parse: {error}",
                    fix="pass text or bytecode written by the same jaxlib",
                ) from error
            PassManager.parse("builtin.module(func.func(sdy-populate-op-sharding-rules))").run(
                parsed.operation
            )
            self._module_meshes = ModuleMeshes(parsed, mesh)
            self._flat = flatten_module(parsed)
            passes = list(_PASSES)
            if any(axis.size == 1 for axis in mesh.axes):
                passes.insert(0, "sdy-remove-size-one-axes")
            self._passes = passes
            self._pipeline = PassManager.parse(f"builtin.module({','.join(passes)})")
            # Checks after every pass take twice as long as the passes; what goes in is checked.
            self._pipeline.enable_verifier(False)
            self._terminator = list(self._flat.entry.operations)[-1].operation
            self._argument_shapes = [_shape(v) for v in self._flat.entry.arguments]
            self._result_shapes = [_shape(v) for v in self._terminator.operands]
            self._num_captured = len(self._argument_shapes) - (
                len(self._argument_shapes) if num_arguments is None else num_arguments
            )
            self._add_arguments()
            self._readings = self._mark_places()
            self._paths_of_one_value = _paths_of_one_value(self._flat)
            self._sharded = [
                result
                for op in operations_of(self._flat.main)
                if op.name in {"sdy.sharding_constraint", "sdy.manual_computation"}
                for result in op.results
            ]
            self.free_paths = frozenset((*_free_paths(self._flat), *self._copied_paths()))

    @property
    def paths(self) -> tuple[str, ...]:
        """Every value that can be read and constrained: arguments, then in program order."""
        return tuple(self._flat.places)

    def shape(self, path: str) -> tuple[int, ...]:
        """The shape of a value, local to the manual axes inside a `shard_map` body."""
        with self._context:
            return _shape(self._flat.places[path].value)

    def propagate(
        self,
        in_shardings: Sequence[Sharding | None] = (),
        out_shardings: Sequence[Sharding | None] = (),
        constraints: Mapping[str, Sharding] | None = None,
    ) -> dict[str, Sharding]:
        """Where every value ends up.

        Args:
            in_shardings: By flat argument; None is free. Shorter is padded with None.
            out_shardings: By flat result, likewise.
            constraints: By path: of a value (`"7.jaxpr/38.0"`, `"in.2"`), of one use
                (`"7.jaxpr/38<1"`), or of one result (`"out<2"`).

        Returns:
            A sharding for each of `paths` but the `free_paths`, and one for each result under
            `out<0`, `out<1`, ... A value that nothing reached comes back fully open.

        Raises:
            PlanError: A constraint on a path that the program does not have.
            ShardingError: A sharding that its value or the mesh does not admit.
            ExportError: Shardy's passes refuse the program.
        """
        with self._context, ir.Location.unknown():
            copy, readings, num_marks = self._copy_with(in_shardings, out_shardings, constraints)
            self._run(self._pipeline, copy)
            return self._read(copy, readings, num_marks)

    def sharded_module(
        self,
        in_shardings: Sequence[Sharding | None],
        out_shardings: Sequence[Sharding | None],
        constraints: Mapping[str, Sharding],
        wanted: Mapping[str, Sharding],
    ) -> bytes:
        """The module after propagation, shardings written on every value that has one.

        Constraints, groups and data-flow edges are still in it.

        Args:
            in_shardings: As for `propagate`.
            out_shardings: Likewise.
            constraints: Likewise.
            wanted: By path, shardings of values where propagation brings them elsewhere.

        Returns:
            Bytecode, locations included.

        Raises:
            As `propagate`.
        """
        with self._context, ir.Location.unknown():
            copy, readings, num_marks = self._copy_with(in_shardings, out_shardings, constraints)
            edges_kept = PassManager.parse(f"builtin.module({','.join(self._passes[:-1])})")
            self._run(edges_kept, copy)
            _, ops = self._marked(copy, num_marks)
            for path, sharding in wanted.items():
                reading = readings.get(path)
                op = None if reading is None else ops[reading.mark]
                if op is None or reading is None or path in self.free_paths:
                    continue
                attribute = self._attribute(sharding, self.shape(path), path)
                write_sharding(op, reading.index, attribute, is_argument=reading.is_argument)
            for op in operations_of(copy):
                if _MARK in op.attributes:
                    del op.attributes[_MARK]
            buffer = io.BytesIO()
            copy.write_bytecode(file=buffer)
            return buffer.getvalue()

    def _copy_with(
        self,
        in_shardings: Sequence[Sharding | None],
        out_shardings: Sequence[Sharding | None],
        constraints: Mapping[str, Sharding] | None,
    ) -> tuple[MlirOp, dict[str, _Reading], int]:
        """A copy of the module with shardings put in, and where to read the outcome."""
        flat = self._flat
        main = flat.main
        edits = _Edits()
        in_shardings = (*(None,) * self._num_captured, *in_shardings)
        before = {
            name: main.attributes[name]
            for name in ("arg_attrs", "res_attrs")
            if name in main.attributes
        }
        try:
            self._set_boundary("arg_attrs", self._argument_shapes, in_shardings)
            self._set_boundary("res_attrs", self._result_shapes, out_shardings)
            self._insert(constraints or {}, edits)
            self._open_loops(in_shardings, edits)
            readings, num_marks = self._readings_with(edits)
            return flat.module.operation.clone(), readings, num_marks
        finally:
            edits.undo()
            for name in ("arg_attrs", "res_attrs"):
                if name in before:
                    main.attributes[name] = before[name]
                elif name in main.attributes:
                    del main.attributes[name]

    def _run(self, pipeline: Any, module: MlirOp) -> None:
        try:
            pipeline.run(module)
        except ir.MLIRError as error:
            raise ExportError(
                f"Shardy's propagation refuses the program: {error}",
                fix="check the shardings given against the shapes of the values",
            ) from error

    # -- once per program -----------------------------------------------------------------------

    def _add_arguments(self) -> None:
        named = {}
        for index, argument in enumerate(self._flat.entry.arguments):
            position = index - self._num_captured
            path = f"in.{position}" if position >= 0 else f"const.{index}"
            if isinstance(argument.type, ir.RankedTensorType):
                readers = tuple((use.owner.operation, use.operand_number) for use in argument.uses)
                named[path] = Place(argument, self._flat.entry, readers)
        self._flat.places = {**named, **self._flat.places}

    def _mark_places(self) -> dict[str, _Reading]:
        marks: dict[MlirOp, int] = {}
        readings = {}
        for path, place in self._flat.places.items():
            owner = place.value.owner
            is_argument = isinstance(owner, ir.Block)
            op = owner.owner.operation if is_argument else owner.operation
            mark = marks.setdefault(op, len(marks))
            index = place.value.arg_number if is_argument else place.value.result_number
            rank = len(_shape(place.value))
            readings[path] = _Reading(mark, index, rank, is_argument)
        for op, mark in marks.items():
            op.attributes[_MARK] = _mark_attribute(mark)
        self._num_marks = len(marks)
        return readings

    def _copied_paths(self) -> Iterator[str]:
        """Paths of what Shardy copies for each reader, so that the copies may differ."""
        copy = self._flat.module.operation.clone()
        PassManager.parse("builtin.module(sdy-constant-or-scalar-splitter)").run(copy)
        times_seen = [0] * self._num_marks

        def visit(op: MlirOp) -> ir.WalkResult:
            if _MARK in op.attributes:
                times_seen[ir.IntegerAttr(op.attributes[_MARK]).value] += 1
            return ir.WalkResult.ADVANCE

        copy.walk(visit, ir.WalkOrder.PRE_ORDER)
        for path, reading in self._readings.items():
            if times_seen[reading.mark] > 1:
                yield path

    def _users(self, use: str) -> tuple[tuple[MlirOp, int], ...]:
        """The operands that a use path stands for: op and operand number."""
        if use not in self._uses:
            self._uses[use] = tuple(self._find_users(use))
        return self._uses[use]

    def _find_users(self, use: str) -> Iterator[tuple[MlirOp, int]]:
        match = _USE.fullmatch(use)
        assert match is not None
        equation, position = match[1], int(match[2])
        if equation == "out":
            if position < len(self._result_shapes):
                yield self._terminator, position
            return
        operands = self._operand_paths.get(equation, ())
        path = operands[position] if position < len(operands) else None
        place = self._flat.places.get(path) if path is not None else None
        if place is None:
            return
        if equation.endswith("/out"):
            inside = equation.removesuffix("out")
            outside = [
                (op, number)
                for op, number in place.readers
                if not equation_of(op).startswith(inside)
            ]
            if operands.count(path) > 1:
                outside = _of_one_result(outside, inside, operands[:position].count(path))
            yield from outside
            return
        found = [
            (op, number)
            for op, number in place.readers
            if f"{equation_of(op)}.".startswith(f"{equation}.")
        ]
        if operands.count(path) > 1 and all(op == found[0][0] for op, _ in found):
            # One op reads it as often as the equation, in the same order: this one only.
            found.sort(key=lambda reader: reader[1])
            if len(found) == operands.count(path):
                found = [found[operands[:position].count(path)]]
        yield from found

    # -- once per propagation -------------------------------------------------------------------

    def _set_boundary(
        self,
        name: str,
        shapes: Sequence[tuple[int, ...]],
        shardings: Sequence[Sharding | None],
    ) -> None:
        if not any(sharding is not None for sharding in shardings):
            return
        main = self._flat.main
        given = ir.ArrayAttr(main.attributes[name]) if name in main.attributes else None
        dictionaries = []
        for index, shape in enumerate(shapes):
            entries = {}
            if given is not None:
                entries = {item.name: item.attr for item in ir.DictAttr(given[index])}
            sharding = shardings[index] if index < len(shardings) else None
            if sharding is not None:
                where = f"{'argument' if name == 'arg_attrs' else 'result'} {index}"
                entries["sdy.sharding"] = self._attribute(sharding, shape, where)
            dictionaries.append(ir.DictAttr.get(entries))
        main.attributes[name] = ir.ArrayAttr.get(dictionaries)

    def _insert(self, constraints: Mapping[str, Sharding], edits: _Edits) -> None:
        places = self._flat.places
        unknown = [path for path in constraints if path not in places and "<" not in path]
        if unknown:
            raise _no_such_path(unknown[0])
        # In program order: where several paths name a value, each sees what the one before made,
        # and what a loop body reads comes behind what the loop reads.
        for path in sorted(constraints, key=_program_order):
            if path not in places:
                self._constrain_use(path, constraints[path], edits)
                continue
            place = places[path]
            attribute = self._attribute(constraints[path], _shape(place.value), path)
            if place.readers:
                edits.at_path[path] = _constrain(place.readers, place.block, attribute, edits)

    def _constrain_use(self, use: str, sharding: Sharding, edits: _Edits) -> None:
        users = self._users(use)
        if not users:
            raise _no_such_path(use)
        op, number = users[0]
        attribute = self._attribute(sharding, _shape(op.operands[number]), use)
        _constrain(users, self._block_of_use(use, users), attribute, edits)

    def _block_of_use(self, use: str, users: Sequence[tuple[MlirOp, int]]) -> Any:
        """Where the equation of a use stands; a loop may read the operand only inside its body."""
        match = _USE.fullmatch(use)
        assert match is not None
        equation, position = match[1], int(match[2])
        if equation == "out" or equation.endswith("/out"):
            return _outermost_block([user for user, _ in users])
        path = self._operand_paths[equation][position]
        assert path is not None
        return self._flat.places[path].block

    def _open_loops(self, in_shardings: Sequence[Sharding | None], edits: _Edits) -> None:
        """As XLA does: a sharded value that a loop reads from outside may differ inside."""
        entry = self._flat.entry
        values = [
            argument
            for argument, sharding in zip(entry.arguments, in_shardings, strict=False)
            if sharding is not None
        ]
        values += self._sharded
        values += [op.results[0] for op in edits.constraints]
        for value in values:
            home = block_of(value)
            by_loop: dict[MlirOp, list[tuple[MlirOp, int]]] = {}
            for use in list(value.uses):
                user = use.owner.operation
                loop = _outermost_loop(user, home)
                if loop is not None:
                    by_loop.setdefault(loop, []).append((user, use.operand_number))
            for loop, targets in by_loop.items():
                shape = _shape(value)
                says_nothing = self._attribute(Sharding.fully_open(len(shape)), shape, "a loop")
                at = ir.InsertionPoint(loop)
                opened = _insert_constraint(value, says_nothing, at, targets, edits)
                edits.opened.append((value, loop, opened))

    def _readings_with(self, edits: _Edits) -> tuple[dict[str, _Reading], int]:
        """Where to read what a loop body reads from outside, which may have its own constraint."""
        readings = dict(self._readings)
        marks: dict[MlirValue, int] = {}

        def read_at(path: str, op: MlirOp) -> None:
            mark = marks.setdefault(op.results[0], self._num_marks + len(marks))
            op.attributes[_MARK] = _mark_attribute(mark)
            readings[path] = _Reading(mark, 0, readings[path].rank)

        for path, behind in self._behind_constraints(edits):
            read_at(path, behind)
        for path, place in self._flat.places.items():
            if not place.is_from_outside:
                continue
            if path in edits.at_path:
                read_at(path, edits.at_path[path])
                continue
            for value, loop, opened in edits.opened:
                if value == place.value and any(
                    is_inside(place.block, region.blocks[0]) for region in loop.regions
                ):
                    read_at(path, opened)
        return readings, self._num_marks + len(marks)

    def _behind_constraints(self, edits: _Edits) -> Iterator[tuple[str, MlirOp]]:
        """Paths that name a value behind a constraint at an earlier path, and where to read them.

        What a call returns is what its body made, behind what was put there.
        """
        for paths in self._paths_of_one_value:
            made: list[tuple[MlirOp, tuple[tuple[MlirOp, int], ...]]] = []  # latest first
            for path in paths:
                readers = self._flat.places[path].readers
                own = edits.at_path.get(path)
                before = next((op for op, its in made if any(r in its for r in readers)), None)
                if before is not None:
                    yield path, before if own is None else own
                if own is not None:
                    made.insert(0, (own, readers))

    # -- attributes -----------------------------------------------------------------------------

    def _attribute(self, sharding: Sharding, shape: tuple[int, ...], where: str) -> Any:
        """A sharding as Shardy has it, checked here because the passes run unchecked."""
        found = self._attribute_by_sharding.get((sharding, len(shape)))
        if found is None:
            try:
                check_sharding(sharding, sharding.inlined_mesh or self.mesh, shape)
            except ShardingError as error:
                raise ShardingError(error.what, where=where, fix=error.fix) from error
            found = self._module_meshes.attribute(sharding)
            self._attribute_by_sharding[sharding, len(shape)] = found
        return found

    def _sharding(self, attribute: Any) -> Sharding:
        found = self._sharding_by_attribute.get(attribute)
        if found is None:
            found = self._module_meshes.sharding(attribute)
            self._sharding_by_attribute[attribute] = found
        return found

    def _read(
        self, module: MlirOp, readings: Mapping[str, _Reading], num_marks: int
    ) -> dict[str, Sharding]:
        main, ops = self._marked(module, num_marks)
        found = {}
        for path, reading in readings.items():
            if path in self.free_paths:
                continue
            op = ops[reading.mark]
            sharding = None if op is None else self._sharding_of(op, reading)
            found[path] = sharding or Sharding.fully_open(reading.rank)
        for index, shape in enumerate(self._result_shapes):
            sharding = self._boundary_sharding(main, "res_attrs", index)
            found[f"out<{index}"] = sharding or Sharding.fully_open(len(shape))
        return found

    def _marked(self, module: MlirOp, num_marks: int) -> tuple[MlirOp, list[MlirOp | None]]:
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

    def _sharding_of(self, op: MlirOp, reading: _Reading) -> Sharding | None:
        if op.name == "func.func":
            return self._boundary_sharding(op, "arg_attrs", reading.index)
        if op.name in {"sdy.sharding_constraint", "sdy.reshard"}:
            return self._sharding(op.attributes["sharding"])
        if op.name == "sdy.manual_computation":
            side = "in_shardings" if reading.is_argument else "out_shardings"
            per_value = sdy.TensorShardingPerValueAttr(op.attributes[side])
            attribute = per_value.shardings[reading.index]
            if reading.is_argument:
                axes = sdy.ManualAxesAttr(op.attributes["manual_axes"])
                return self._module_meshes.sharding(attribute, without=frozenset(axes))
            return self._sharding(attribute)
        if "sdy.sharding" not in op.attributes:
            return None
        per_value = sdy.TensorShardingPerValueAttr(op.attributes["sdy.sharding"])
        return self._sharding(per_value.shardings[reading.index])

    def _boundary_sharding(self, main: MlirOp, name: str, index: int) -> Sharding | None:
        if name not in main.attributes:
            return None
        entries = ir.DictAttr(ir.ArrayAttr(main.attributes[name])[index])
        return self._sharding(entries["sdy.sharding"]) if "sdy.sharding" in entries else None


def _mark_attribute(mark: int) -> Any:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), mark)


def _shape(value: MlirValue) -> tuple[int, ...]:
    """Empty for what is no tensor, such as a token."""
    return tuple(value.type.shape) if isinstance(value.type, ir.RankedTensorType) else ()


def _program_order(path: str) -> tuple[tuple[float, int, str, float, float], ...]:
    """Paths sorted as a program gets to them.

    Of an equation: its reads, each behind the stops on its way (`38<1~0`), then what its bodies
    hold, then what it makes.
    """
    return tuple(map(_step_order, path.split("/")))


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


def _constrain(
    readers: Sequence[tuple[MlirOp, int]], block: Any, attribute: Any, edits: _Edits
) -> MlirOp:
    """Put a constraint between a value and the operands given, which read it in `block`."""
    op, number = readers[0]
    value = op.operands[number]
    is_made_here = not isinstance(value.owner, ir.Block) and value.owner.operation.block == block
    at = (
        ir.InsertionPoint.after(value.owner.operation)
        if is_made_here
        else ir.InsertionPoint.at_block_begin(block)
    )
    return _insert_constraint(value, attribute, at, readers, edits)


def _insert_constraint(
    value: MlirValue,
    attribute: Any,
    at: Any,
    readers: Sequence[tuple[MlirOp, int]],
    edits: _Edits,
) -> MlirOp:
    made = sdy.ShardingConstraintOp(value, attribute, ip=at).operation
    edits.constraints.append(made)
    for op, number in readers:
        if op.operands[number] == value:
            op.operands[number] = made.results[0]
    return made


def _of_one_result(
    readers: Sequence[tuple[MlirOp, int]], inside: str, num_earlier: int
) -> list[tuple[MlirOp, int]]:
    """Of the readers of a value that a body returns several times, those of one of its results.

    What a body ends in comes first, as the carries of a scan do; the others read what it stacks.
    """
    holder = inside.removesuffix("/").rpartition(".")[0]
    ends = [
        (op, number)
        for op, number in readers
        if op.name == "stablehlo.return" and equation_of(op) == holder
    ]
    ends.sort(key=lambda end: end[1])
    if num_earlier < len(ends):
        return [ends[num_earlier]]
    return [reader for reader in readers if reader not in ends]


def _outermost_block(ops: Sequence[MlirOp]) -> Any:
    """The block, of those the ops are in, in which all are nested."""
    block = ops[0].block
    for op in ops[1:]:
        while not is_inside(op.block, block):
            block = block.owner.operation.block
    return block


def _outermost_loop(user: MlirOp, home: Any) -> MlirOp | None:
    """The outermost loop around an op within block `home`."""
    found = None
    while user.block != home:
        user = user.block.owner.operation
        if user.name == "stablehlo.while":
            found = user
    return found


def _paths_of_one_value(flat: FlatModule) -> list[list[str]]:
    """Paths that see one value where it is made, two or more, in program order."""
    by_value: dict[MlirValue, list[str]] = {}
    for path, place in flat.places.items():
        if not place.is_from_outside:
            by_value.setdefault(place.value, []).append(path)
    return [sorted(paths, key=_program_order) for paths in by_value.values() if len(paths) > 1]


def _free_paths(flat: FlatModule) -> Iterator[str]:
    """Paths of constants and what is made of them alone."""
    free: set[MlirValue] = set()  # ops hash as they are asked, values as they are
    for op in operations_of(flat.main):
        name = op.name.partition(".")[2]
        if name in FREE_SOURCES or (
            name in FREE_IF_OPERANDS_FREE and all(value in free for value in op.operands)
        ):
            free.update(op.results)
    for path, place in flat.places.items():
        if place.value in free:
            yield path


def _no_such_path(path: str) -> PlanError:
    return PlanError(
        "the plan constrains a value that the program does not have",
        where=path,
        fix="plan again for this program",
    )
