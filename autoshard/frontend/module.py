"""From a lowered StableHLO module to the program graph.

Calls are flattened, loops and branches become regions of one flat list of ops, and each op takes
the sharding rule that Shardy's own pass gives it. Only ops that pass leaves without a rule get one
of ours. All attributes are read through the MLIR bindings, never from printed text.

What a program does not tell is assumed, and said: a loop whose trip count nobody knows runs a
default number of times (with a note), and the branches of a conditional are taken equally often,
unless its index is a constant.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import jax  # noqa: F401  (importing it registers Shardy's passes)
from jax._src.interpreters import mlir as jax_mlir  # checked on jax 0.10.2
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy
from jaxlib.mlir.passmanager import PassManager

from autoshard.errors import AutoshardError, ExportError
from autoshard.frontend import op_kinds
from autoshard.frontend.graph_builder import GraphBuilder, TensorType
from autoshard.frontend.op_flops import op_flops
from autoshard.frontend.op_rules import fitted_rule, own_rule, read_rule, whole_rule
from autoshard.frontend.tensor_types import read_tensor_type
from autoshard.frontend.trip_counts import (
    Loop,
    LoopCounter,
    ToldTripCounts,
    check_trip_count,
    scalar_integer,
)
from autoshard.graph.program import Graph, OpClass, OpKind
from autoshard.graph.rule import Rule, batched_rule, identity_rule
from autoshard.graph.verify import verify_graph
from autoshard.sharding import Mesh, format_sharding, parse_mesh, parse_sharding

DEFAULT_TRIP_COUNT = 10.0

LARGE_CONSTANT_BYTES = 1 << 20
"""Tables in the program from this size on are counted in memory, whole on every device."""

_TAG = re.compile(r"(?:^|/)T\[((?:[^\[\]]|\[\d+\])+)\](?:/sharding_constraint)?$")
_EQUATION = re.compile(r"(?<![A-Za-z0-9_])E\[((?:[^\[\]]|\[\d+\])+)\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleNames:
    """What the user calls the function's arguments and results, and where equations come from.

    Args:
        arguments: Per flat argument.
        results: Per flat result.
        donated: Per flat argument, whether the program may reuse its buffer.
        captured: Arrays the function closes over; `main` takes them before the arguments. Left out,
            they are called `captured[0]` and so on.
        source_by_equation: By equation path, `file.py:12 (function)`, or "".
    """

    arguments: Sequence[str]
    results: Sequence[str]
    donated: Sequence[bool]
    captured: Sequence[str] = ()
    source_by_equation: Mapping[str, str] = field(default_factory=dict)


def module_to_graph(
    module: bytes | str,
    names: ModuleNames,
    *,
    trip_counts: Mapping[str, float] | None = None,
    default_trip_count: float = DEFAULT_TRIP_COUNT,
) -> Graph:
    """Read a StableHLO module (bytecode or text) as a graph.

    Args:
        module: The module; its `main` is the program.
        names: Names for arguments and results, in order.
        trip_counts: Trip counts of loops whose count the program does not tell, keyed by the end
            of the loop's source (`"train.py:40"`) or its equation path.
        default_trip_count: Used, with a note, where neither the program nor the user tells.

    Returns:
        A graph in which `verify_graph` finds nothing wrong.

    Raises:
        ExportError: The module does not parse, has no `main`, does not fit its names, or cannot be
            read as a graph.
        InputError: `trip_counts` names a loop the program does not have, or no number of runs.
    """
    told = ToldTripCounts(dict(trip_counts or {}))
    check_trip_count(default_trip_count, "default_trip_count")
    with jax_mlir.make_ir_context(), ir.Location.unknown():
        importer = _Importer(names, told, default_trip_count)
        graph = importer.run(_parsed(module))
    violations = verify_graph(graph)
    if violations:
        raise ExportError(
            "the graph of this program contradicts itself:\n"
            + "\n".join(f"- {v}" for v in violations),
            where=violations[0],
            fix="this is a mistake of autoshard; please report it with the function that shows it",
        )
    return graph


def _parsed(module: bytes | str) -> Any:
    try:
        parsed = ir.Module.parse(module)
    except (ir.MLIRError, ValueError) as error:
        size = f"{len(module)} {'bytes' if isinstance(module, bytes) else 'characters'}"
        raise ExportError(
            f"the StableHLO module does not parse: {_first_line(error)}",
            where=f"a module of {size}",
            fix="pass the whole text or bytecode of a module, written by the same jaxlib",
        ) from error
    try:
        PassManager.parse("builtin.module(func.func(sdy-populate-op-sharding-rules))").run(
            parsed.operation
        )
    except ir.MLIRError as error:
        raise ExportError(
            f"Shardy finds no sharding rules for the module: {_first_line(error)}",
            fix="lower the function with jax.jit(fn).lower(...) of the installed jax",
        ) from error
    return parsed


def _first_line(error: Exception) -> str:
    lines = [line.strip(" -") for line in str(error).splitlines() if line.strip(" -:")]
    told = [line for line in lines if "error:" in line] or lines
    return told[0] if told else type(error).__name__


@dataclass(frozen=True, slots=True)
class _Scope:
    """Where ops are being imported to."""

    region: int
    repeat: float
    free_axes: bool  # whether some mesh axis is left to cut along
    source: str = ""  # of the call around them, for ops that have none
    equation: str = ""


_Env = dict[Any, int]


@dataclass(slots=True)
class _Importer:
    names: ModuleNames
    told: ToldTripCounts
    default_trip_count: float
    build: GraphBuilder = field(default_factory=GraphBuilder)
    loops: list[Loop] = field(default_factory=list)
    functions: dict[str, Any] = field(default_factory=dict)
    meshes: dict[str, Mesh] = field(default_factory=dict)
    mesh_axes: frozenset[str] = frozenset()
    num_captured: int = 0
    free: set[int] = field(default_factory=set)
    scalar_ops: dict[int, Any] = field(default_factory=dict)
    rules: dict[Any, Rule] = field(default_factory=dict)
    types: dict[Any, TensorType] = field(default_factory=dict)
    places: dict[Any, tuple[str, str]] = field(default_factory=dict)
    large_constants: dict[Any, bool] = field(default_factory=dict)

    def run(self, module: Any) -> Graph:
        axes: set[str] = set()
        for op in module.body.operations:
            if op.operation.name == "func.func":
                self.functions[op.name.value] = op
            elif op.operation.name == "sdy.mesh":
                mesh = sdy.MeshAttr(op.operation.attributes["mesh"])
                name = ir.StringAttr(op.operation.attributes["sym_name"]).value
                self.meshes[name] = parse_mesh(str(mesh).removeprefix("#sdy.mesh"))
                axes.update(sdy.MeshAxisAttr(axis).name for axis in mesh.axes)
        self.mesh_axes = frozenset(axes)
        main = self.functions.get("main")
        if main is None:
            held = ", ".join(sorted(self.functions)) or "none"
            raise ExportError(
                "the module has no function called main",
                where=f"its functions: {held}",
                fix="export the program through jax.jit(...).lower or name its entry @main",
            )
        block = main.regions[0].blocks[0]
        scope = _Scope(self.build.open_region("main", -1), 1.0, True)
        env = self._arguments(block)
        returned = self._block(block, env, scope)
        self._results(returned)
        self.build.close_region(scope.region)
        self._count_loops()
        self._report_constants()
        return self.build.finish(self.names.donated, self.num_captured)

    # -- the function's border ------------------------------------------------------------------

    def _arguments(self, block: Any) -> _Env:
        """Captured arrays, then arguments, in the order of `main`, before all else."""
        env: _Env = {}
        given: list[Any] = []
        tokens: list[Any] = []
        for argument in block.arguments:
            (given if isinstance(argument.type, ir.RankedTensorType) else tokens).append(argument)
        self.num_captured = len(given) - len(self.names.arguments)
        captured = self.names.captured or [f"captured[{i}]" for i in range(self.num_captured)]
        # The first arrays captured may be written into the module as constants instead.
        num_written = len(captured) - self.num_captured
        if self.num_captured < 0 or num_written < 0:
            raise ExportError(
                f"main takes {len(given)} arrays, names are given for"
                f" {len(self.names.arguments)} arguments and {len(self.names.captured)} captured"
                " arrays",
                where="main",
                fix="lower with keep_unused=True and name every flat argument",
            )
        for position, argument in enumerate(given):
            number = position - self.num_captured
            if number >= 0:
                name, path = self.names.arguments[number], f"in.{number}"
            else:
                name = captured[position + num_written]
                path = f"const.{position + num_written}"
            env[argument] = self._source(argument.type, name, path)
        for token in tokens:  # orders side effects; holds nothing
            made = self.build.add(
                OpKind.FREE, "token", (), [self._type(token.type)], rule=None, region=0, repeat=1.0
            )
            env[token] = made.results[0]
        return env

    def _source(self, mlir_type: Any, name: str, path: str) -> int:
        found = self._type(mlir_type)
        rule = identity_rule(found[0], 0)
        made = self.build.add(
            OpKind.ARGUMENT, "argument", (), [found], rule=rule, region=0, repeat=1.0
        )
        (value,) = made.results
        self.build.values[value].name = name
        self.build.name_path(path, value)
        return value

    def _results(self, returned: list[int]) -> None:
        arrays = [v for v in returned if not self.build.values[v].type[1].startswith("!")]
        if len(arrays) != len(self.names.results):
            raise ExportError(
                f"main returns {len(arrays)} arrays, names are given for {len(self.names.results)}",
                where="main",
                fix="name every flat result",
            )
        for name, returned_value in zip(self.names.results, arrays, strict=True):
            value = self._written_out(returned_value)
            rule = identity_rule(self.build.shape(value), 1, 0)
            self.build.add(OpKind.RESULT, name, (value,), [], rule=rule, region=0, repeat=1.0)

    def _written_out(self, value: int) -> int:
        """A returned value that every device makes itself takes memory and time all the same."""
        shape = self.build.shape(value)
        if value not in self.free or not shape:
            return value
        made = self.build.add(
            OpKind.COMPUTE,
            "copy",
            (value,),
            [self.build.values[value].type],
            rule=identity_rule(shape),
            region=0,
            repeat=1.0,
        )
        made.op_class = OpClass.COPY
        return made.results[0]

    # -- reading --------------------------------------------------------------------------------

    def _type(self, mlir_type: Any) -> TensorType:
        found = self.types.get(mlir_type)
        if found is None:
            found = self.types[mlir_type] = read_tensor_type(mlir_type)
        return found

    def _place(self, op: Any, scope: _Scope) -> tuple[str, str]:
        """The user's source line and the jaxpr equation path of an op.

        An op inside a lowering rule has neither; it takes those of the call that led to it.
        """
        location = op.location
        found = self.places.get(location)
        if found is None:
            paths = _EQUATION.findall(_name_of(location))
            equation = paths[-1] if paths else ""
            source = self.names.source_by_equation.get(equation, "")
            if not source and not scope.source:
                source = _file_of(location)
            found = (source, equation)
            if source:
                self.places[location] = found
        return found[0] or scope.source, found[1] or scope.equation

    # -- walking --------------------------------------------------------------------------------

    def _block(self, block: Any, env: _Env, scope: _Scope) -> list[int]:
        """Import a block's ops; return the values its terminator returns."""
        for op in block.operations:
            operation = op.operation
            name = operation.name
            if name in _TERMINATORS:
                return [env[v] for v in operation.operands]
            handler = _HANDLERS.get(name)
            if handler is not None:
                handler(self, operation, env, scope)
                continue
            try:
                self._ordinary(operation, name, env, scope)
            except AutoshardError as error:
                if error.where:
                    raise
                source = self._place(operation, scope)[0] or "no source line"
                raise ExportError(error.what, where=f"{name} at {source}", fix=error.fix) from error
        return []

    def _ordinary(self, op: Any, full_name: str, env: _Env, scope: _Scope) -> None:
        name = full_name.partition(".")[2]
        operands = tuple([env[v] for v in op.operands])
        results = [self._type(v.type) for v in op.results]
        if self._is_free(op, name, operands):
            made = self.build.add(
                OpKind.FREE,
                name,
                operands,
                results,
                rule=None,
                region=scope.region,
                repeat=scope.repeat,
            )
            self.free.update(made.results)
        else:
            self._work(op, name, operands, results, scope)
            made = self.build.ops[-1]
        if name in _SCALAR_OPS and results[0][0] == ():
            self.scalar_ops[made.results[0]] = op
        for result, value in zip(op.results, made.results, strict=True):
            env[result] = value

    def _is_free(self, op: Any, name: str, operands: tuple[int, ...]) -> bool:
        """Whether every device can make its own piece without talking to others."""
        if name == "constant":
            return not self._is_large(op)
        if name in op_kinds.FREE_SOURCES:
            return True
        if name == "broadcast_in_dim" and not self.build.shape(operands[0]):
            return True
        return (
            bool(operands)
            and name in op_kinds.FREE_IF_OPERANDS_FREE
            and all(v in self.free for v in operands)
        )

    def _is_large(self, op: Any) -> bool:
        """Whether a constant takes memory of note: no splat, and many bytes."""
        shape, _, bits = self._type(op.results[0].type)
        if prod(shape) * bits < LARGE_CONSTANT_BYTES * 8:
            return False
        attribute = op.attributes["value"]
        is_dense = isinstance(attribute, ir.DenseElementsAttr)
        return not (is_dense and ir.DenseElementsAttr(attribute).is_splat)

    def _work(
        self,
        op: Any,
        name: str,
        operands: tuple[int, ...],
        results: list[TensorType],
        scope: _Scope,
    ) -> None:
        label = target = name
        if name == "custom_call":
            target = ir.StringAttr(op.attributes["call_target_name"]).value
            label = f"custom_call @{target}"
        rule, is_kept_whole = self._rule(op, target, operands, results)
        source, equation = self._place(op, scope)
        made = self.build.add(
            OpKind.COMPUTE,
            label,
            operands,
            results,
            rule=rule,
            region=scope.region,
            repeat=scope.repeat,
            source=source,
            equation=equation,
        )
        made.op_class = op_kinds.op_class(target)
        types = [self.build.values[v].type for v in operands]
        made.flops = op_flops(op, target, made.op_class, types, results)
        if is_kept_whole and scope.free_axes:
            made.note = f"{label} has no sharding rule and is kept whole"
            self.build.note(f"{made.note} ({source or 'no source line'})")

    def _rule(
        self, op: Any, target: str, operands: tuple[int, ...], results: list[TensorType]
    ) -> tuple[Rule, bool]:
        """Shardy's rule, or ours for an op that gets none; whether that keeps the op whole."""
        shapes = tuple([self.build.shape(v) for v in operands])
        result_shapes = tuple([t[0] for t in results])
        if target in op_kinds.MATRIX_CUSTOM_CALLS:
            return batched_rule(shapes, result_shapes, len(shapes[0]) - 2), False
        attributes = op.attributes
        if "sdy.sharding_rule" in attributes:
            attribute = attributes["sdy.sharding_rule"]
            key = (attribute, shapes, result_shapes)
            rule = self.rules.get(key)
            if rule is None:
                rule = fitted_rule(read_rule(attribute), shapes, result_shapes)
                self.rules[key] = rule
            return rule, False
        if target == "constant":
            return whole_rule(result_shapes[0]), False
        return own_rule(op, shapes, result_shapes)

    # -- ops that are no work -------------------------------------------------------------------

    def _constraint(self, op: Any, env: _Env, scope: _Scope) -> None:
        operand = env[op.operands[0]]
        tag = _TAG.search(_name_of(op.location))
        if tag is not None:  # ours: it only says which jaxpr value this is
            self.build.name_path(tag.group(1), operand)
            env[op.results[0]] = operand
            return
        sharding = sdy.TensorShardingAttr(op.attributes["sharding"])
        if _says_nothing(sharding):
            env[op.results[0]] = operand
            return
        source, equation = self._place(op, scope)
        made = self.build.add(
            OpKind.CONSTRAINT,
            "sharding_constraint",
            (operand,),
            [self._type(op.results[0].type)],
            rule=identity_rule(self.build.shape(operand)),
            region=scope.region,
            repeat=scope.repeat,
            source=source,
            equation=equation,
            pinned=self._with_mesh(str(sharding)),
        )
        env[op.results[0]] = made.results[0]

    def _with_mesh(self, text: str) -> str:
        """A sharding with its mesh written inline: the names of meshes do not leave the module."""
        sharding = parse_sharding(text)
        mesh = self.meshes.get(sharding.mesh_name)
        return format_sharding(replace(sharding, inlined_mesh=mesh) if mesh else sharding)

    def _group(self, op: Any, env: _Env, scope: _Scope) -> None:
        del scope
        group = ir.IntegerAttr(op.attributes["group_id"]).value
        self.build.tie(group, env[op.operands[0]])

    def _call(self, op: Any, env: _Env, scope: _Scope) -> None:
        attribute = op.attributes["callee" if op.name == "func.call" else "decomposition"]
        function = self.functions[ir.FlatSymbolRefAttr(attribute).value]
        block = function.regions[0].blocks[0]
        inner = dict(zip(block.arguments, (env[v] for v in op.operands), strict=True))
        source, equation = self._place(op, scope)
        inside = _Scope(scope.region, scope.repeat, scope.free_axes, source, equation)
        returned = self._block(block, inner, inside)
        env.update(zip(op.results, returned, strict=True))

    def _join(
        self,
        name: str,
        operands: tuple[int, ...],
        mlir_type: Any,
        place: tuple[str, str],
        scope: _Scope,
    ) -> int:
        """A JOIN op whose sources share one sharding; its index."""
        found = self._type(mlir_type)
        source, equation = place
        self.build.add(
            OpKind.JOIN,
            name,
            operands,
            [found],
            rule=identity_rule(found[0], len(operands)),
            region=scope.region,
            repeat=scope.repeat,
            source=source,
            equation=equation,
        )
        return len(self.build.ops) - 1

    def _barrier(self, op: Any, env: _Env, scope: _Scope) -> None:
        place = self._place(op, scope)
        for operand, result in zip(op.operands, op.results, strict=True):
            index = self._join("optimization_barrier", (env[operand],), result.type, place, scope)
            env[result] = self.build.ops[index].results[0]

    def _while(self, op: Any, env: _Env, scope: _Scope) -> None:
        place = self._place(op, scope)
        cond, body = (region.blocks[0] for region in op.regions)
        joins = [
            self._join("while", (env[operand],), result.type, place, scope)
            for operand, result in zip(op.operands, op.results, strict=True)
        ]
        carried = [self.build.ops[index].results[0] for index in joins]
        region = self.build.open_region("loop", scope.region, source=place[0])
        inside = _Scope(region, scope.repeat, scope.free_axes, *place)
        goes_on = self._block(cond, {**env, **_pairs(cond.arguments, carried)}, inside)
        returned = self._block(body, {**env, **_pairs(body.arguments, carried)}, inside)
        for index, value in zip(joins, returned, strict=True):
            join = self.build.ops[index]
            if value != join.results[0]:
                join.operands = (*join.operands, value)
                join.rule = identity_rule(self.build.shape(value), 2)
        self.build.close_region(region)
        self.loops.append(Loop(region, tuple(joins), goes_on[0], *place))
        env.update(zip(op.results, carried, strict=True))

    def _count_loops(self) -> None:
        """Multiply the ops of every loop by its trip count."""
        counter = LoopCounter(self.build, self.scalar_ops)
        for loop in sorted(self.loops, key=lambda loop: loop.region):
            count, is_known = self._trips(counter, loop)
            self.build.set_trip_count(loop.region, count, is_known=is_known)
        for loop in self.loops:
            trips = self.build.regions[loop.region].trip_count
            for index in loop.joins:
                join = self.build.ops[index]
                if len(join.operands) == 2:
                    join.operand_repeats = (join.repeat, join.repeat * trips)
        self.told.check_all_used(self.loops)

    def _trips(self, counter: LoopCounter, loop: Loop) -> tuple[float, bool]:
        limit, is_known = counter.trips(loop)
        told = self.told.of(loop)
        if is_known and limit is not None:
            if told is not None and told[1] != limit:
                self.build.note(
                    f"trip_counts[{told[0]!r}] = {told[1]:g} is not used: the program says that the"
                    f" loop runs {limit} times ({loop.where})"
                )
            return float(limit), True
        if told is not None:
            return told[1], True
        advice = "pass trip_counts={'file.py:line': n}"
        if limit is not None:
            self.build.note(
                f"loop that may end early: taken to run {limit} times, its limit ({loop.where});"
                f" {advice}"
            )
            return float(limit), False
        self.build.note(
            f"loop with unknown trip count: taken as {self.default_trip_count:g} ({loop.where});"
            f" {advice}"
        )
        return self.default_trip_count, False

    def _report_constants(self) -> None:
        """Name large tables by the line that reads them first; they have none of their own."""
        tables = {
            op.results[0]: op
            for op in self.build.ops
            if op.name == "constant" and op.kind is OpKind.COMPUTE
        }
        if not tables:
            return
        for op in self.build.ops:
            for value in op.operands:
                table = tables.pop(value, None)
                if table is None:
                    continue
                shape, _, bits = self.build.values[value].type
                table.source = op.source
                table.note = (
                    f"a constant of {prod(shape) * bits // 8:,} bytes is written into the program,"
                    " whole on every device; pass it as an argument to have it cut"
                )
                self.build.note(f"{table.note} ({op.source or 'no source line'})")

    def _case(self, op: Any, env: _Env, scope: _Scope) -> None:
        place = self._place(op, scope)
        shares = self._shares(op, env)
        returned = []
        for branch, share in zip(op.regions, shares, strict=True):
            region = self.build.open_region(
                "branch", scope.region, trip_count=share, source=place[0]
            )
            inside = _Scope(region, scope.repeat * share, scope.free_axes, *place)
            returned.append(self._block(branch.blocks[0], dict(env), inside))
            self.build.close_region(region)
        for position, result in enumerate(op.results):
            sources = tuple(values[position] for values in returned)
            index = self._join("case", sources, result.type, place, scope)
            join = self.build.ops[index]
            join.operand_repeats = tuple(scope.repeat * share for share in shares)
            env[result] = join.results[0]

    def _shares(self, op: Any, env: _Env) -> list[float]:
        """How often each branch is taken: equally often, unless the program says which one is."""
        number = len(op.regions)
        chooser = self.scalar_ops.get(env[op.operands[0]])
        if chooser is None or chooser.name != "stablehlo.constant":
            return [1.0 / number] * number
        chosen = scalar_integer(chooser)
        if chosen is None:
            return [1.0 / number] * number
        if op.name == "stablehlo.if":
            chosen = 0 if chosen else 1
        elif not 0 <= chosen < number:
            chosen = number - 1
        return [1.0 if branch == chosen else 0.0 for branch in range(number)]

    # -- shard_map ------------------------------------------------------------------------------

    def _manual(self, op: Any, env: _Env, scope: _Scope) -> None:
        place = self._place(op, scope)
        attribute = sdy.ManualAxesAttr(op.attributes["manual_axes"])
        axes = tuple(map(str, attribute))
        shardings_in = sdy.TensorShardingPerValueAttr(op.attributes["in_shardings"])
        shardings_out = sdy.TensorShardingPerValueAttr(op.attributes["out_shardings"])
        block = op.regions[0].blocks[0]
        inner = dict(env)
        for operand, argument, sharding in zip(
            op.operands, block.arguments, shardings_in.shardings, strict=True
        ):
            inner[argument] = self._border(
                OpKind.ENTER_MANUAL, env[operand], argument.type, sharding, place, scope
            )
        region = self.build.open_region("manual", scope.region, manual_axes=axes, source=place[0])
        inside = _Scope(region, scope.repeat, self._has_free_axes(region), *place)
        returned = self._block(block, inner, inside)
        self.build.close_region(region)
        for value, result, sharding in zip(
            returned, op.results, shardings_out.shardings, strict=True
        ):
            env[result] = self._border(
                OpKind.LEAVE_MANUAL, value, result.type, sharding, place, scope
            )

    def _border(
        self,
        kind: OpKind,
        value: int,
        mlir_type: Any,
        sharding: Any,
        place: tuple[str, str],
        scope: _Scope,
    ) -> int:
        """Into or out of a shard_map body; the rule speaks of the local tensor on both sides."""
        found = self._type(mlir_type)
        made = self.build.add(
            kind,
            "shard_map",
            (value,),
            [found],
            rule=identity_rule(
                found[0] if kind is OpKind.ENTER_MANUAL else self.build.shape(value)
            ),
            region=scope.region,
            repeat=scope.repeat,
            source=place[0],
            equation=place[1],
            pinned=str(sharding),
        )
        return made.results[0]

    def _has_free_axes(self, region: int) -> bool:
        taken: set[str] = set()
        while region >= 0:
            taken.update(self.build.regions[region].manual_axes)
            region = self.build.regions[region].parent
        return not self.mesh_axes or bool(self.mesh_axes - taken)


_TERMINATORS = frozenset({"func.return", "stablehlo.return", "sdy.return"})
_SCALAR_OPS = frozenset({"constant", "compare"})
_HANDLERS = {
    "sdy.sharding_constraint": _Importer._constraint,
    "sdy.reshard": _Importer._constraint,
    "sdy.sharding_group": _Importer._group,
    "func.call": _Importer._call,
    "stablehlo.composite": _Importer._call,
    "stablehlo.optimization_barrier": _Importer._barrier,
    "stablehlo.while": _Importer._while,
    "stablehlo.case": _Importer._case,
    "stablehlo.if": _Importer._case,
    "sdy.manual_computation": _Importer._manual,
}


def _pairs(arguments: Any, values: list[int]) -> _Env:
    return dict(zip(arguments, values, strict=True))


def _says_nothing(sharding: Any) -> bool:
    """Whether a written sharding leaves every dimension open and uses no axis."""
    dims = [sdy.DimensionShardingAttr(dim) for dim in sharding.dimension_shardings]
    is_open = all(not dim.is_closed and not len(dim.axes) for dim in dims)
    special = (*sharding.replicated_axes, *sharding.unreduced_axes)
    return is_open and not special


def _name_of(location: Any) -> str:
    """The name stack of a location, "" where it has none."""
    return location.name_str if isinstance(location, ir.NameLoc) else ""


def _file_of(location: Any) -> str:
    """`file.py:12` of the innermost file position of a location, "" where it has none."""
    while isinstance(location, ir.NameLoc):
        location = location.child_loc
    if isinstance(location, ir.CallSiteLoc):
        return _file_of(location.callee)
    if isinstance(location, ir.FileLineColLoc):
        return f"{location.filename}:{location.start_line}"
    return ""


__all__ = ["DEFAULT_TRIP_COUNT", "LARGE_CONSTANT_BYTES", "ModuleNames", "module_to_graph"]
