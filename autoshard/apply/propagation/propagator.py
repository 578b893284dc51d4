"""Shardy's own propagation, in process: what the compiler makes of a set of constraints."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import jax  # noqa: F401  (importing it registers Shardy's passes)
from jax._src.interpreters import mlir as jax_mlir  # checked on jax 0.10.2
from jaxlib.mlir import ir
from jaxlib.mlir.passmanager import PassManager

from autoshard.apply.flat_module import (
    FlatModule,
    MlirOp,
    MlirValue,
    Place,
    flatten_module,
    tensor_shape,
)
from autoshard.apply.minimal_set import cut_alike
from autoshard.apply.nested_ops import operations_of
from autoshard.apply.propagation.inserted_constraints import InsertedConstraints
from autoshard.apply.propagation.marked_values import (
    MarkedValues,
    Reading,
    Readings,
    find_marked,
    remove_marks,
)
from autoshard.apply.propagation.sharding_attributes import ShardingAttributes
from autoshard.apply.propagation.use_readers import UseReaders
from autoshard.apply.write_sharding import write_sharding
from autoshard.errors import ExportError
from autoshard.frontend.op_kinds import FREE_IF_OPERANDS_FREE, FREE_SOURCES
from autoshard.mlir_modules import is_registered, on_its_level
from autoshard.sharding import Mesh, Sharding

_BOUNDARIES = ("arg_attrs", "res_attrs")
_TO_RESULTS = "sdy-propagate-to-func-results"
_PASSES = (
    "sdy-constant-or-scalar-splitter",
    "symbol-dce",
    "sdy-manual-axes-cleanup",
    "sdy-add-data-flow-edges",
    "sdy-apply-sharding-constraints",
    "sdy-sharding-group-import",
    "sdy-user-priority-propagate{propagation-strategy=aggressive run-op-priority-propagation=true}",
    _TO_RESULTS,
    "sdy-sink-data-flow-edges",
)
"""The propagation pipeline of Shardy as XLA runs it, without what it does afterwards to export.

Propagation goes to the results of functions in a pass of its own since jaxlib 0.10.1.
"""


class PlannedProgram(Protocol):
    """What is asked of a traced program or of a module that came from elsewhere."""

    @property
    def module(self) -> bytes: ...
    @property
    def in_avals(self) -> Sequence[Any]: ...
    @property
    def out_avals(self) -> Sequence[Any]: ...
    @property
    def operand_paths(self) -> Mapping[str, Sequence[str | None]]: ...


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
        num_ops: That propagation goes through.

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
        self._context = jax_mlir.make_ir_context()
        with self._context, ir.Location.unknown():
            parsed = _parsed(module)
            self._attributes = ShardingAttributes(parsed, mesh)
            self._flat = flatten_module(parsed)
            ones = ["sdy-remove-size-one-axes"] * any(axis.size == 1 for axis in mesh.axes)
            passes = [p for p in (*ones, *_PASSES) if p != _TO_RESULTS or is_registered(p)]
            self._passes = list(map(on_its_level, passes))
            self._pipeline = PassManager.parse(f"builtin.module({','.join(self._passes)})")
            # Checks after every pass take twice as long as the passes; what goes in is checked.
            self._pipeline.enable_verifier(False)
            ops = list(operations_of(self._flat.main))
            self.num_ops = len(ops)
            terminator = list(self._flat.entry.operations)[-1].operation
            self._argument_shapes = [tensor_shape(v) for v in self._flat.entry.arguments]
            self._result_shapes = [tensor_shape(v) for v in terminator.operands]
            self._num_captured = len(self._argument_shapes) - (
                len(self._argument_shapes) if num_arguments is None else num_arguments
            )
            self._add_arguments()
            self._uses = UseReaders(self._flat, terminator, dict(operand_paths or {}))
            self._marks = MarkedValues(self._flat)
            self._sharded = [
                result
                for op in ops
                if op.name in {"sdy.sharding_constraint", "sdy.manual_computation"}
                for result in op.results
            ]
            free = _free_paths(self._flat, ops)
            self.free_paths = frozenset((*free, *self._marks.copied_paths()))

    @property
    def paths(self) -> tuple[str, ...]:
        """Every value that can be read and constrained: arguments, then in program order."""
        return tuple(self._flat.places)

    def shape(self, path: str) -> tuple[int, ...]:
        """The shape of a value, local to the manual axes inside a `shard_map` body."""
        with self._context:
            return tensor_shape(self._flat.places[path].value)

    def propagate(
        self,
        in_shardings: Sequence[Sharding | None] = (),
        out_shardings: Sequence[Sharding | None] = (),
        constraints: Mapping[str, Sharding] | None = None,
        wanted: Mapping[str, Sharding] | None = None,
    ) -> dict[str, Sharding]:
        """Where every value ends up.

        Args:
            in_shardings: By flat argument; None is free. Shorter is padded with None.
            out_shardings: By flat result, likewise.
            constraints: By path: of a value (`"7.jaxpr/38.0"`, `"in.2"`), of one use
                (`"7.jaxpr/38<1"`), or of one result (`"out<2"`).
            wanted: By path: of the copies of a value in an unrolled loop the first is told that is
                cut otherwise.

        Returns:
            A sharding for each of `paths` but the `free_paths`, and one for each result under
            `out<0`, `out<1`, ... A value that nothing reached comes back fully open.

        Raises:
            PlanError: A constraint on a path that the program does not have.
            ShardingError: A sharding that its value or the mesh does not admit.
            ExportError: Shardy's passes refuse the program.
        """
        with self._context, ir.Location.unknown():
            copy, readings = self._copy_with(in_shardings, out_shardings, constraints)
            self._run(self._pipeline, copy)
            return self._read(copy, readings, wanted or {})

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
            copy, readings = self._copy_with(in_shardings, out_shardings, constraints)
            edges_kept = PassManager.parse(f"builtin.module({','.join(self._passes[:-1])})")
            self._run(edges_kept, copy)
            _, ops = find_marked(copy, readings.num_marks)
            for path, sharding in wanted.items():
                reading = readings.by_path.get(path)
                op = None if reading is None else ops[reading.mark]
                if op is None or reading is None or path in self.free_paths:
                    continue
                attribute = self._attributes.of(sharding, self.shape(path), path)
                write_sharding(op, reading.index, attribute, is_argument=reading.is_argument)
            remove_marks(copy)
            buffer = io.BytesIO()
            copy.write_bytecode(file=buffer)
            return buffer.getvalue()

    def _copy_with(
        self,
        in_shardings: Sequence[Sharding | None],
        out_shardings: Sequence[Sharding | None],
        constraints: Mapping[str, Sharding] | None,
    ) -> tuple[MlirOp, Readings]:
        """A copy of the module with shardings put in, and where to read the outcome."""
        inserted = InsertedConstraints(self._flat, self._uses, self._attributes)
        in_shardings = (*(None,) * self._num_captured, *in_shardings)
        arguments = zip(self._flat.entry.arguments, in_shardings, strict=False)
        sharded = [argument for argument, sharding in arguments if sharding is not None]
        attributes = self._flat.main.attributes
        before = {name: attributes[name] for name in _BOUNDARIES if name in attributes}
        try:
            self._set_boundary("arg_attrs", self._argument_shapes, in_shardings)
            self._set_boundary("res_attrs", self._result_shapes, out_shardings)
            inserted.insert(constraints or {})
            inserted.open_loops([*sharded, *self._sharded])
            readings = self._marks.readings_with(inserted)
            return self._flat.module.operation.clone(), readings
        finally:
            inserted.undo()
            for name in _BOUNDARIES:
                if name in before:
                    attributes[name] = before[name]
                elif name in attributes:
                    del attributes[name]

    def _set_boundary(
        self, name: str, shapes: Sequence[tuple[int, ...]], shardings: Sequence[Sharding | None]
    ) -> None:
        main = self._flat.main
        if any(sharding is not None for sharding in shardings):
            main.attributes[name] = self._attributes.on_boundary(main, name, shapes, shardings)

    def _run(self, pipeline: Any, module: MlirOp) -> None:
        try:
            pipeline.run(module)
        except ir.MLIRError as error:
            raise ExportError(
                f"Shardy's propagation refuses the program: {error}",
                fix="check the shardings given against the shapes of the values",
            ) from error

    def _read(
        self, module: MlirOp, readings: Readings, wanted: Mapping[str, Sharding]
    ) -> dict[str, Sharding]:
        main, ops = find_marked(module, readings.num_marks)
        attributes = self._attributes
        arguments = attributes.read_boundary(main, "arg_attrs", map(len, self._argument_shapes))
        results = attributes.read_boundary(main, "res_attrs", map(len, self._result_shapes))

        def read(reading: Reading) -> Sharding:
            op, sharding = ops[reading.mark], None
            if op is not None and op == main:
                sharding = arguments[reading.index]
            elif op is not None:
                sharding = attributes.read(op, reading.index, is_argument=reading.is_argument)
            return sharding or attributes.open(reading.rank)

        found = {
            path: read(reading)
            for path, reading in readings.by_path.items()
            if path not in self.free_paths
        }
        for path, copies in readings.copies.items():
            if path in found and path in wanted:
                all_of_it = (found[path], *map(read, copies))
                others = (one for one in all_of_it if not cut_alike(one, wanted[path]))
                found[path] = next(others, found[path])
        return found | {f"out<{index}": sharding for index, sharding in enumerate(results)}

    def _add_arguments(self) -> None:
        named = {}
        for index, argument in enumerate(self._flat.entry.arguments):
            position = index - self._num_captured
            path = f"in.{position}" if position >= 0 else f"const.{index}"
            if isinstance(argument.type, ir.RankedTensorType):
                readers = tuple((use.owner.operation, use.operand_number) for use in argument.uses)
                named[path] = Place(argument, self._flat.entry, readers)
        self._flat.places = {**named, **self._flat.places}


def propagator_for(program: PlannedProgram, mesh: Mesh) -> Propagator:
    """Shardy's propagation over a program."""
    return Propagator(
        program.module,
        mesh,
        num_arguments=len(program.in_avals),
        operand_paths=program.operand_paths,
    )


def _parsed(module: bytes | str) -> Any:
    """A module with Shardy's rules on its ops."""
    try:
        parsed = ir.Module.parse(module)
    except ir.MLIRError as error:
        raise ExportError(
            f"the StableHLO module does not parse: {error}",
            fix="pass text or bytecode written by the same jaxlib",
        ) from error
    rules = PassManager.parse("builtin.module(func.func(sdy-populate-op-sharding-rules))")
    rules.run(parsed.operation)
    return parsed


def _free_paths(flat: FlatModule, ops: Sequence[MlirOp]) -> Iterator[str]:
    """Paths of constants and what is made of them alone, among the ops of a module."""
    free: set[MlirValue] = set()  # ops hash as they are asked, values as they are
    for op in ops:
        name = op.name.partition(".")[2]
        if name in FREE_SOURCES or (
            name in FREE_IF_OPERANDS_FREE and all(value in free for value in op.operands)
        ):
            free.update(op.results)
    for path, place in flat.places.items():
        if place.value in free:
            yield path
