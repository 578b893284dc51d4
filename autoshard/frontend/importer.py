"""Walking a StableHLO module: each op becomes ops of the graph, in program order."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, TypeAlias

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import chlo, sdy, stablehlo

from autoshard.constraints.program import holder_of
from autoshard.errors import AutoshardError, ExportError
from autoshard.frontend import op_kinds
from autoshard.frontend.asked_inside import AskedInside, AskedReads, Place, add_constraint
from autoshard.frontend.dead_code import Control
from autoshard.frontend.declared_cost import declared_cost
from autoshard.frontend.graph_builder import GraphBuilder, OpDraft, TensorType
from autoshard.frontend.op_flops import op_flops
from autoshard.frontend.op_rules import (
    fitted_rule,
    has_all_reduce,
    own_rule,
    pooled_rule,
    read_rule,
    unsummed,
    whole_rule,
)
from autoshard.frontend.tensor_types import read_tensor_type
from autoshard.frontend.trail import Trail
from autoshard.frontend.trip_counts import Loop, ToldTripCounts
from autoshard.frontend.windows import moved_windows, read_windows
from autoshard.frontend.written_collectives import read_collective
from autoshard.graph.program import OpClass, OpKind
from autoshard.graph.rule import Rule, batched_rule
from autoshard.mlir_modules import file_of, name_of
from autoshard.sharding import Mesh, format_sharding, parse_sharding

LARGE_CONSTANT_BYTES = 1 << 20
"""Tables in the program from this size on are counted in memory, whole on every device."""

_TAG = re.compile(r"(?:^|/)T\[((?:[^\[\]]|\[\d+\])+)\](?:/sharding_constraint)?$")
_EQUATION = re.compile(r"(?<![A-Za-z0-9_])E\[((?:[^\[\]]|\[\d+\])+)\]")
_TERMINATORS = frozenset({"func.return", "stablehlo.return", "sdy.return"})
_SCALAR_OPS = frozenset({"constant", "compare"})
_PLACEMENT = "annotate_device_placement"  # of `jax.device_put` to a memory
CONSTRAINTS = frozenset({"sdy.sharding_constraint", "sdy.reshard"})


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


@dataclass(frozen=True, slots=True)
class Scope:
    """Where ops are being imported to."""

    region: int
    repeat: float
    free_axes: bool  # whether some mesh axis is left to cut along
    source: str = ""  # of the call around them, for ops that have none
    equation: str = ""
    in_function: bool = False  # that is called


Env: TypeAlias = dict[Any, int]
"""The value that stands for each MLIR value seen so far."""


@dataclass(slots=True, eq=False)
class Importer:
    """A module on its way to a graph.

    Args:
        names: What the user calls things.
        told: Trip counts the user gave.
        default_trip_count: For loops nobody tells.
        handlers: By op name, the ops that are more than work cut by a rule.
        asked: What the user asks of values inside.
        trail: Where it is to be known which ops are for which equation.
    """

    names: ModuleNames
    told: ToldTripCounts
    default_trip_count: float
    handlers: Mapping[str, Handler]
    asked: AskedInside = field(default_factory=AskedInside)
    reads: AskedReads = field(init=False)
    build: GraphBuilder = field(default_factory=GraphBuilder)
    loops: list[Loop] = field(default_factory=list)
    controls: list[Control] = field(default_factory=list)
    conditionals: list[tuple[str, Control]] = field(default_factory=list)
    functions: dict[str, Any] = field(default_factory=dict)
    meshes: dict[str, Mesh] = field(default_factory=dict)
    mesh_axes: frozenset[str] = frozenset()
    num_captured: int = 0
    free: set[int] = field(default_factory=set)
    scalar_ops: dict[int, Any] = field(default_factory=dict)
    fills: dict[Hashable, OpDraft] = field(default_factory=dict)
    rules: dict[Any, Rule] = field(default_factory=dict)
    types: dict[Any, TensorType] = field(default_factory=dict)
    places: dict[Any, tuple[str, str]] = field(default_factory=dict)
    dangling: dict[Any, list[Any]] = field(default_factory=dict)
    trail: Trail | None = None

    def __post_init__(self) -> None:
        self.reads = AskedReads(self.asked)

    def tensor_type(self, mlir_type: Any) -> TensorType:
        found = self.types.get(mlir_type)
        if found is None:
            found = self.types[mlir_type] = read_tensor_type(mlir_type)
        return found

    def place(self, op: Any, scope: Scope) -> tuple[str, str]:
        """The user's source line and the jaxpr equation path of an op.

        An op inside a lowering rule has neither; it takes those of the call that led to it.
        """
        location = op.location
        found = self.places.get(location)
        if found is None:
            paths = _EQUATION.findall(name_of(location))
            equation = paths[-1] if paths else ""
            source = self.names.source_by_equation.get(equation, "")
            if not source and not scope.source:
                source = file_of(location)
            found = (source, equation)
            if source:
                self.places[location] = found
        return found[0] or scope.source, found[1] or scope.equation

    def block(self, block: Any, env: Env, scope: Scope) -> list[int]:
        """Import a block's ops; return the values its terminator returns."""
        operations = [op.operation for op in block.operations]
        for op in filter(_is_dangling, operations):
            self.dangling.setdefault(op.operands[0], []).append(op)
        if self.dangling:
            self._pin_dangling([value for value in self.dangling if value in env], env, scope)
        reads = self.reads or None
        for op in operations:
            if op.name in _TERMINATORS:
                return [env[v] for v in op.operands]
            before = reads and reads.redirect(self.build, env, self._reader(op, scope))
            equation = self.place(op, scope)[1] if self.trail else ""
            if self.trail:
                self.trail.enter(len(self.build.ops), equation)
            self._op(op, env, scope)
            if self.trail and equation:
                self.trail.leave(equation, [env[v] for v in op.results if v in env])
            if before:
                env.update(before)
            if self.dangling:
                self._pin_dangling(op.results, env, scope)
        return []

    def _op(self, op: Any, env: Env, scope: Scope) -> None:
        handler = self.handlers.get(op.name)
        if handler is not None:
            handler(self, op, env, scope)
            return
        try:
            self._ordinary(op, op.name, env, scope)
        except AutoshardError as error:
            if error.where:
                raise
            source = self.place(op, scope)[0] or "no source line"
            raise ExportError(error.what, where=f"{op.name} at {source}", fix=error.fix) from error

    def scoped(self, op: Any, scope: Scope) -> Place:
        """Where an op that belongs to `op` goes."""
        return Place(scope.region, scope.repeat, *self.place(op, scope))

    def _reader(self, op: Any, scope: Scope) -> Place:
        """Where an op goes, and the equation it reads for; a tag, for the holder of its body."""
        place = self.scoped(op, scope)
        path = tag_of(op) if op.name in CONSTRAINTS else None
        if path is None or not path.rpartition("/")[2].startswith(("in.", "const.")):
            return place
        return replace(place, equation=holder_of(path))

    def scoped_to(self, op: Any, path: str, scope: Scope) -> Place:
        """Where an op goes that belongs to the value at a jaxpr path, which `op` tags."""
        source, equation = self.place(op, scope)
        maker = path.rpartition(".")[0]
        known = self.names.source_by_equation.get(maker, "")
        return Place(scope.region, scope.repeat, known or source, equation)

    def sharding_text(self, op: Any) -> str:
        """The sharding of a constraint op with its mesh written inline.

        The names of meshes do not leave the module.
        """
        sharding = parse_sharding(str(sdy.TensorShardingAttr(op.attributes["sharding"])))
        mesh = self.meshes.get(sharding.mesh_name)
        return format_sharding(replace(sharding, inlined_mesh=mesh) if mesh else sharding)

    def _pin_dangling(self, values: Sequence[Any], env: Env, scope: Scope) -> None:
        """A constraint that nothing reads shards the value itself: its readers read through it."""
        for value in values:
            for op in self.dangling.pop(value, ()):
                text, place = self.sharding_text(op), self.scoped(op, scope)
                env[value] = add_constraint(self.build, env[value], text, place)

    def _ordinary(self, op: Any, full_name: str, env: Env, scope: Scope) -> None:
        name = full_name.partition(".")[2]
        operands = tuple([env[v] for v in op.operands])
        if _changes_nothing(op, name):
            env[op.results[0]] = operands[0]
            return
        results = [self.tensor_type(v.type) for v in op.results]
        if self._is_free(op, name, operands):
            made = self._free_op(op, name, operands, results, scope)
        else:
            self._work(op, name, operands, results, scope)
            made = self.build.ops[-1]
        if name in _SCALAR_OPS and results[0][0] == ():
            self.scalar_ops[made.results[0]] = op
        for result, value in zip(op.results, made.results, strict=True):
            env[result] = value

    def _free_op(
        self,
        op: Any,
        name: str,
        operands: tuple[int, ...],
        results: list[TensorType],
        scope: Scope,
    ) -> OpDraft:
        """An op that every device makes its own piece of; equal fills of a body are one."""
        fill = _fill_of(op, name, results[0])
        key = None if fill is None else (operands, fill, scope.region, scope.in_function)
        if key in self.fills:
            if self.trail:
                self.trail.merge(self.fills[key])
            return self.fills[key]
        made = self.build.add(
            OpKind.FREE,
            name,
            operands,
            results,
            rule=None,
            region=scope.region,
            repeat=scope.repeat,
        )
        made.in_function = scope.in_function
        if op_kinds.op_class(name) is OpClass.ELEMENTWISE:
            made.flops = float(prod(results[0][0]))
        self.free.update(made.results)
        if key is not None:
            self.fills[key] = made
        return made

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
        shape, _, bits = self.tensor_type(op.results[0].type)
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
        scope: Scope,
    ) -> None:
        label = target = "reshape" if _adds_unit_dims(op, name) else name
        if name == "custom_call":
            target = ir.StringAttr(op.attributes["call_target_name"]).value
            label = "device_put" if target == _PLACEMENT else f"custom_call @{target}"
        rule, is_kept_whole = self._rule(op, target, operands, results)
        source, equation = self.place(op, scope)
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
        types = [self.build.values[v].type for v in operands]
        made.op_class = _class_of(target, types, results)
        made.collective = read_collective(op)
        made.declared = declared_cost(op) if name == "custom_call" else None
        made.is_exact = _is_exact(op)
        made.is_sum = made.op_class is OpClass.REDUCE and name == "reduce" and _adds(op)
        made.spread = _spread(op, name)
        shapes = [self.build.shape(v) for v in operands]
        made.windows = read_windows(op, name, shapes)
        made.moved_windows = moved_windows(op, name, shapes)
        made.memory_kind = _memory_kind(op, target)
        made.flops = op_flops(op, target, made.op_class, types, results)
        if is_kept_whole and scope.free_axes:
            reason = "is gathered over free axes" if made.collective else "has no sharding rule"
            made.note = f"{label} {reason} and is kept whole"
            self.build.note(f"{made.note} ({source or 'no source line'})")

    def _rule(
        self, op: Any, target: str, operands: tuple[int, ...], results: list[TensorType]
    ) -> tuple[Rule, bool]:
        """Shardy's rule, or ours for an op that gets none; whether that keeps the op whole."""
        shapes = tuple([self.build.shape(v) for v in operands])
        result_shapes = tuple([t[0] for t in results])
        if target in op_kinds.MATRIX_CUSTOM_CALLS:
            return batched_rule(shapes, result_shapes, len(shapes[0]) - 2), False
        if target in op_kinds.MANUAL_COLLECTIVES - op_kinds.SHAPE_KEEPING_COLLECTIVES:
            return batched_rule(shapes, result_shapes, 0), True
        attributes = op.attributes
        if "sdy.sharding_rule" in attributes:
            attribute = attributes["sdy.sharding_rule"]
            key = (attribute, shapes, result_shapes)
            rule = self.rules.get(key)
            if rule is None:
                rule = fitted_rule(read_rule(attribute), shapes, result_shapes)
                self.rules[key] = rule
            if target == "select_and_scatter":
                rule = pooled_rule(rule, read_windows(op, target, shapes), *shapes[:2])
            return rule if has_all_reduce(op) else unsummed(rule), False
        if target == "constant":
            return whole_rule(result_shapes[0]), False
        return own_rule(op, shapes, result_shapes)


Handler: TypeAlias = Callable[[Importer, Any, Env, Scope], None]


def _fill_of(op: Any, name: str, made: TensorType) -> Hashable:
    """The key that equal constant scalars share, or equal broadcasts that element-wise ops read.

    Lowering writes one for every literal, and compilers merge them before they partition. None for
    all else: other readers may need an array in memory, tags name a value of the user's, and the
    bindings of MLIR read no complex constants.
    """
    shape, dtype, _ = made
    if name == "constant":
        return None if shape or dtype.startswith("complex") else op.attributes["value"]
    if name != "broadcast_in_dim":
        return None
    readers = (use.owner.name.partition(".")[2] for use in op.results[0].uses)
    if any(op_kinds.op_class(reader) is not OpClass.ELEMENTWISE for reader in readers):
        return None
    return made, op.attributes["broadcast_dimensions"]


def _changes_nothing(op: Any, name: str) -> bool:
    """True for a slice of all elements and a pad that adds and drops none; compilers remove both.

    JAX lowers the gradient of a max pool for CPUs with both.
    """
    if name == "pad":
        names = ("edge_padding_low", "edge_padding_high", "interior_padding")
        return not any(size for each in names for size in op.attributes[each])
    return name == "slice" and op.operands[0].type == op.results[0].type


def _adds_unit_dims(op: Any, name: str) -> bool:
    """True for a broadcast that adds dimensions of size 1 alone; compilers make it a reshape."""
    if name != "broadcast_in_dim":
        return False
    before, after = (ir.RankedTensorType(one.type) for one in (op.operands[0], op.results[0]))
    dims = list(op.attributes["broadcast_dimensions"])
    return prod(before.shape) == prod(after.shape) > 0 and dims == sorted(dims)


def _is_exact(op: Any) -> bool:
    """Whether a product asks for more than the default precision, or for an algorithm by name."""
    if "algorithm" in op.attributes:
        return True
    if "precision_config" not in op.attributes:
        return False
    asked = op.attributes["precision_config"]
    dialect = chlo if op.name.startswith("chlo.") else stablehlo
    return any(dialect.PrecisionAttr(each).value != "DEFAULT" for each in asked)


def _class_of(
    target: str, operands: Sequence[TensorType], results: Sequence[TensorType]
) -> OpClass:
    """The class of an op by its name; a reduction over dimensions of size 1 is a reshape."""
    if target == "reduce" and prod(operands[0][0]) == prod(results[0][0]):
        return OpClass.COPY
    return op_kinds.op_class(target)


def _adds(op: Any) -> bool:
    """Whether a reduction of one tensor adds its elements up."""
    inside = [one.operation.name for one in op.regions[0].blocks[0]]
    return inside == ["stablehlo.add", "stablehlo.return"]


def _spread(op: Any, name: str) -> tuple[int, ...]:
    """Dimensions of which a slice skips elements, or between elements of which there is padding."""
    if name == "slice":
        return tuple(dim for dim, step in enumerate(op.attributes["strides"]) if step > 1)
    if name == "pad":
        between = op.attributes["interior_padding"]
        return tuple(dim for dim, padding in enumerate(between) if padding > 0)
    return ()


def _memory_kind(op: Any, target: str) -> str:
    """The kind of the memory that an op brings its operand to, or ""."""
    if target != _PLACEMENT:
        return ""
    said = ir.DictAttr(op.attributes["mhlo.frontend_attributes"])
    return str(ir.StringAttr(said["_xla_buffer_placement"]).value)


def _is_dangling(op: Any) -> bool:
    """Whether this is a constraint of the user's that nothing reads."""
    return (
        op.name in CONSTRAINTS
        and next(iter(op.results[0].uses), None) is None
        and tag_of(op) is None
        and not says_nothing(sdy.TensorShardingAttr(op.attributes["sharding"]))
    )


def tag_of(op: Any) -> str | None:
    """The jaxpr path of which our tag is, None for a constraint of the user's."""
    tag = _TAG.search(name_of(op.location))
    return None if tag is None else tag.group(1)


def says_nothing(sharding: Any) -> bool:
    """Whether a written sharding leaves every dimension open and uses no axis."""
    dims = [sdy.DimensionShardingAttr(dim) for dim in sharding.dimension_shardings]
    is_open = all(not dim.is_closed and not len(dim.axes) for dim in dims)
    special = (*sharding.replicated_axes, *sharding.unreduced_axes)
    return is_open and not special
