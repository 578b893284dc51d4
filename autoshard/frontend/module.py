"""From a lowered StableHLO module to the program graph.

Calls are flattened, loops and branches become regions of one flat list of ops, and each op takes
the sharding rule that Shardy's own pass gives it. Only ops that pass leaves without a rule get one
of ours. All attributes are read through the MLIR bindings, never from printed text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import jax  # noqa: F401  (importing it registers Shardy's passes)
import numpy as np
from jax._src.interpreters import mlir as jax_mlir  # checked on jax 0.10.2
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy
from jaxlib.mlir.passmanager import PassManager

from autoshard.errors import ExportError
from autoshard.frontend import op_kinds
from autoshard.graph.program import Graph, Op, OpClass, OpKind, Region, Value
from autoshard.graph.rule import Dims, Rule, aligned_rule, identity_rule

DEFAULT_TRIP_COUNT = 10.0

_TAG = re.compile(r"T\[([^\]]*(?:\[\d+\][^\]]*)*)\](?:/sharding_constraint)?$")
_EQUATION = re.compile(r"E\[([^\]]*(?:\[\d+\][^\]]*)*)\]")
_DTYPE_BITS = {"i1": 8, "ui1": 8, "complex<f32>": 64, "complex<f64>": 128}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleNames:
    """What the user calls the function's arguments and results, and where equations come from."""

    arguments: Sequence[str]
    results: Sequence[str]
    donated: Sequence[bool]
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
        trip_counts: Trip counts of loops whose count the program does not tell, keyed by a part
            of the loop's source (`"train.py:40"`) or equation path.
        default_trip_count: Used, with a note, where neither the program nor the user tells.

    Raises:
        ExportError: The module has no `main`, or does not parse.
    """
    with jax_mlir.make_ir_context(), ir.Location.unknown():
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
        importer = _Importer(names, dict(trip_counts or {}), default_trip_count)
        return importer.run(parsed)


@dataclass(slots=True)
class _Importer:
    names: ModuleNames
    trip_counts: dict[str, float]
    default_trip_count: float
    values: list[Value] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    regions: list[Region] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    groups: dict[int, list[int]] = field(default_factory=dict)
    value_by_path: dict[str, int] = field(default_factory=dict)
    functions: dict[str, Any] = field(default_factory=dict)
    free: set[int] = field(default_factory=set)
    rules: dict[Any, Rule] = field(default_factory=dict)
    types: dict[Any, tuple[tuple[int, ...], str, int]] = field(default_factory=dict)
    where: dict[Any, tuple[str, str]] = field(default_factory=dict)
    meshes: dict[str, Any] = field(default_factory=dict)

    def run(self, module: Any) -> Graph:
        for op in module.body.operations:
            if op.operation.name == "func.func":
                self.functions[op.name.value] = op
        main = self.functions.get("main")
        if main is None:
            raise ExportError(
                "the module has no function called main",
                fix="export the program through jax.jit(...).lower or name its entry @main",
            )
        block = main.regions[0].blocks[0]
        self.regions.append(Region(0, "main", -1, 0, 0))
        env: dict[Any, int] = {}
        # `jax.jit` puts arrays that the function closes over before its arguments.
        num_captured = len(block.arguments) - len(self.names.arguments)
        captured = (f"captured[{i}]" for i in range(num_captured))
        for argument, name in zip(
            block.arguments, (*captured, *self.names.arguments), strict=True
        ):
            shape, _, _ = self._type(argument.type)
            op = self._add(OpKind.ARGUMENT, "argument", (), 0, 1.0, rule=identity_rule(shape, 0))
            env[argument] = self._result(op, argument.type, name=name)
            path = f"in.{op - num_captured}" if op >= num_captured else f"const.{op}"
            self.value_by_path[path] = env[argument]
            self.values[env[argument]] = replace(self.values[env[argument]], path=path)
        returned = self._block(block, env, 0, 1.0)
        for position, value in enumerate(returned):
            shape = self.values[value].shape
            name = self.names.results[position]
            self._add(OpKind.RESULT, name, (value,), 0, 1.0, rule=identity_rule(shape, 1, 0))
        self._close(0)
        donated = tuple(
            num_captured + i for i, given in enumerate(self.names.donated) if given
        )
        return Graph(
            tuple(self.values),
            tuple(self.ops),
            tuple(self.regions),
            tuple(tuple(members) for _, members in sorted(self.groups.items())),
            self.value_by_path,
            donated,
            tuple(dict.fromkeys(self.notes)),
            num_captured,
        )

    # -- building -------------------------------------------------------------------------------

    def _add(
        self,
        kind: OpKind,
        name: str,
        operands: tuple[int, ...],
        region: int,
        repeat: float,
        **more: Any,
    ) -> int:
        index = len(self.ops)
        self.ops.append(Op(index, kind, name, operands, (), region=region, repeat=repeat, **more))
        return index

    def _result(self, op: int, mlir_type: Any, name: str = "") -> int:
        shape, dtype, bits = self._type(mlir_type)
        index = len(self.values)
        self.values.append(Value(index, shape, dtype, bits, op, "", name))
        made = self.ops[op]
        self.ops[op] = replace(made, results=(*made.results, index))
        return index

    def _open(self, kind: str, parent: int, **more: Any) -> int:
        index = len(self.regions)
        self.regions.append(Region(index, kind, parent, len(self.ops), 0, **more))
        return index

    def _close(self, region: int) -> None:
        self.regions[region] = replace(self.regions[region], stop=len(self.ops))

    def _type(self, mlir_type: Any) -> tuple[tuple[int, ...], str, int]:
        found = self.types.get(mlir_type)
        if found is None:
            found = _read_type(mlir_type)
            self.types[mlir_type] = found
        return found

    def _where(self, op: Any) -> tuple[str, str]:
        """The user's source line and the jaxpr equation path of an op."""
        location = op.location
        found = self.where.get(location)
        if found is None:
            text = _name_of(location)
            paths = _EQUATION.findall(text)
            equation = paths[-1] if paths else ""
            source = self.names.source_by_equation.get(equation, "") or _file_of(location)
            found = (source, equation)
            self.where[location] = found
        return found

    # -- walking --------------------------------------------------------------------------------

    def _block(self, block: Any, env: dict[Any, int], region: int, repeat: float) -> list[int]:
        """Import a block's ops; return the values its terminator returns."""
        for op in block.operations:
            operation = op.operation
            name = operation.name
            if name in _TERMINATORS:
                return [env[v] for v in operation.operands]
            handler = _HANDLERS.get(name)
            if handler is not None:
                handler(self, op, env, region, repeat)
            else:
                self._ordinary(operation, env, region, repeat)
        return []

    def _ordinary(self, op: Any, env: dict[Any, int], region: int, repeat: float) -> None:
        dialect, _, name = op.name.partition(".")
        operands = tuple(env[v] for v in op.operands)
        if (
            name in op_kinds.FREE_SOURCES
            or (
                operands
                and name in op_kinds.FREE_IF_OPERANDS_FREE
                and all(v in self.free for v in operands)
            )
            or (name == "broadcast_in_dim" and not self.values[operands[0]].shape)
        ):
            index = self._add(OpKind.FREE, name, operands, region, repeat)
            for result in op.results:
                env[result] = self._result(index, result.type)
                self.free.add(env[result])
            return
        source, equation = self._where(op)
        rule, note = self._rule(op, dialect, name)
        if note:
            self.notes.append(f"{note} ({source or 'no source line'})")
        op_class = op_kinds.op_class(name)
        index = self._add(
            OpKind.COMPUTE,
            self._display_name(op, name),
            operands,
            region,
            repeat,
            rule=rule,
            op_class=op_class,
            source=source,
            equation=equation,
            note=note,
        )
        for result in op.results:
            env[result] = self._result(index, result.type)
        self.ops[index] = replace(self.ops[index], flops=self._flops(self.ops[index]))

    def _display_name(self, op: Any, name: str) -> str:
        if name == "custom_call":
            return f"custom_call @{ir.StringAttr(op.attributes['call_target_name']).value}"
        return name

    def _flops(self, op: Op) -> float:
        if op.op_class in (OpClass.MATMUL, OpClass.CONVOLUTION) and op.rule is not None:
            return 2.0 * op.rule.num_points
        sizes = [prod(self.values[v].shape) for v in (*op.operands, *op.results)]
        return float(max(sizes, default=0)) if op.op_class is not OpClass.COPY else 0.0

    def _rule(self, op: Any, dialect: str, name: str) -> tuple[Rule, str]:
        """Shardy's rule, or ours for an op that gets none; a note where the op is kept whole."""
        if "sdy.sharding_rule" in op.attributes:
            attribute = op.attributes["sdy.sharding_rule"]
            rule = self.rules.get(attribute)
            if rule is None:
                rule = _read_rule(attribute)
                self.rules[attribute] = rule
            return rule, ""
        operands = tuple(self._type(v.type)[0] for v in op.operands)
        results = tuple(self._type(v.type)[0] for v in op.results)
        if dialect == "chlo" and name in op_kinds.CHLO_ELEMENTWISE:
            return aligned_rule(operands, results), ""
        if name == "top_k":
            return aligned_rule(operands, results, frozenset({len(operands[0]) - 1})), ""
        if name in _MANUAL_COLLECTIVES:
            return aligned_rule(operands, results), ""
        whole = frozenset(range(max((len(s) for s in (*operands, *results)), default=0)))
        rule = aligned_rule(operands, results, whole)
        is_big = any(prod(s) > 1 for s in (*operands, *results))
        label = self._display_name(op, name)
        return rule, f"{label} has no sharding rule and is kept whole" if is_big else ""

    def _constraint(self, op: Any, env: dict[Any, int], region: int, repeat: float) -> None:
        operand = env[op.operation.operands[0]]
        tag = _TAG.search(_name_of(op.operation.location))
        if tag is not None:  # ours: it only says which jaxpr value this is
            path = tag.group(1)
            value = self.values[operand]
            self.value_by_path[path] = operand
            if not value.path:
                self.values[operand] = replace(value, path=path)
            env[op.operation.results[0]] = operand
            return
        source, equation = self._where(op.operation)
        shape = self.values[operand].shape
        text = str(op.operation.attributes["sharding"])
        index = self._add(
            OpKind.CONSTRAINT,
            "sharding_constraint",
            (operand,),
            region,
            repeat,
            rule=identity_rule(shape),
            source=source,
            equation=equation,
            pinned=text,
        )
        env[op.operation.results[0]] = self._result(index, op.operation.results[0].type)

    def _group(self, op: Any, env: dict[Any, int], region: int, repeat: float) -> None:
        del region, repeat
        group = ir.IntegerAttr(op.operation.attributes["group_id"]).value
        self.groups.setdefault(group, []).append(env[op.operation.operands[0]])

    def _call(self, op: Any, env: dict[Any, int], region: int, repeat: float) -> None:
        attribute = op.operation.attributes[
            "callee" if op.operation.name == "func.call" else "decomposition"
        ]
        function = self.functions[ir.FlatSymbolRefAttr(attribute).value]
        block = function.regions[0].blocks[0]
        inner = dict(zip(block.arguments, (env[v] for v in op.operation.operands), strict=True))
        returned = self._block(block, inner, region, repeat)
        env.update(zip(op.operation.results, returned, strict=True))

    def _barrier(self, op: Any, env: dict[Any, int], region: int, repeat: float) -> None:
        source, equation = self._where(op.operation)
        for operand, result in zip(op.operation.operands, op.operation.results, strict=True):
            shape, _, _ = self._type(result.type)
            index = self._add(
                OpKind.JOIN,
                "optimization_barrier",
                (env[operand],),
                region,
                repeat,
                rule=identity_rule(shape),
                source=source,
                equation=equation,
            )
            env[result] = self._result(index, result.type)

    def _while(self, op: Any, env: dict[Any, int], region: int, repeat: float) -> None:
        operation = op.operation
        source, equation = self._where(operation)
        cond, body = (r.blocks[0] for r in operation.regions)
        trips, known = self._trips(operation, cond, body, source, equation)
        joins = []
        for operand, result in zip(operation.operands, operation.results, strict=True):
            shape, _, _ = self._type(result.type)
            index = self._add(
                OpKind.JOIN,
                "while",
                (env[operand],),
                region,
                repeat,
                rule=identity_rule(shape),
                source=source,
                equation=equation,
            )
            env[result] = self._result(index, result.type)
            joins.append(index)
        inner_region = self._open(
            "loop", region, trip_count=trips, is_trip_count_known=known, source=source
        )
        for block in (cond, body):
            inner = dict(env)
            carried = (self.ops[index].results[0] for index in joins)
            inner.update(zip(block.arguments, carried, strict=True))
            returned = self._block(block, inner, inner_region, repeat * trips)
            if block is body:
                for index, value in zip(joins, returned, strict=True):
                    join = self.ops[index]
                    if value != join.results[0]:
                        self.ops[index] = replace(
                            join,
                            operands=(*join.operands, value),
                            rule=identity_rule(self.values[value].shape, 2),
                            operand_repeats=(repeat, repeat * trips),
                        )
        self._close(inner_region)

    def _trips(
        self, op: Any, cond: Any, body: Any, source: str, equation: str
    ) -> tuple[float, bool]:
        known = _static_trip_count(op, cond, body)
        if known is not None:
            return float(known), True
        for key, count in self.trip_counts.items():
            if key in source or (equation and key == equation):
                return float(count), True
        self.notes.append(
            f"loop with unknown trip count: taken as {self.default_trip_count:g}"
            f" ({source or 'no source line'}); pass trip_counts={{'file.py:line': n}}"
        )
        return self.default_trip_count, False

    def _case(self, op: Any, env: dict[Any, int], region: int, repeat: float) -> None:
        operation = op.operation
        source, equation = self._where(operation)
        share = repeat / len(operation.regions)  # branches taken equally often
        returned = []
        for branch in operation.regions:
            inner_region = self._open("branch", region, source=source)
            returned.append(self._block(branch.blocks[0], dict(env), inner_region, share))
            self._close(inner_region)
        for position, result in enumerate(operation.results):
            shape, _, _ = self._type(result.type)
            sources = tuple(values[position] for values in returned)
            index = self._add(
                OpKind.JOIN,
                "case",
                sources,
                region,
                repeat,
                rule=identity_rule(shape, len(sources)),
                source=source,
                equation=equation,
                operand_repeats=(share,) * len(sources),
            )
            env[result] = self._result(index, result.type)

    def _manual(self, op: Any, env: dict[Any, int], region: int, repeat: float) -> None:
        operation = op.operation
        source, equation = self._where(operation)
        axes = tuple(
            ir.StringAttr(a).value for a in sdy.ManualAxesAttr(operation.attributes["manual_axes"])
        )
        shardings_in = sdy.TensorShardingPerValueAttr(operation.attributes["in_shardings"])
        shardings_out = sdy.TensorShardingPerValueAttr(operation.attributes["out_shardings"])
        block = operation.regions[0].blocks[0]
        inner = dict(env)
        for operand, argument, sharding in zip(
            operation.operands, block.arguments, shardings_in.shardings, strict=True
        ):
            shape, _, _ = self._type(argument.type)
            index = self._add(
                OpKind.ENTER_MANUAL,
                "shard_map",
                (env[operand],),
                region,
                repeat,
                rule=identity_rule(shape),
                source=source,
                equation=equation,
                pinned=str(sharding),
            )
            inner[argument] = self._result(index, argument.type)
        inner_region = self._open("manual", region, manual_axes=axes, source=source)
        returned = self._block(block, inner, inner_region, repeat)
        self._close(inner_region)
        for value, result, sharding in zip(
            returned, operation.results, shardings_out.shardings, strict=True
        ):
            index = self._add(
                OpKind.LEAVE_MANUAL,
                "shard_map",
                (value,),
                region,
                repeat,
                rule=identity_rule(self.values[value].shape),
                source=source,
                equation=equation,
                pinned=str(sharding),
            )
            env[result] = self._result(index, result.type)


_TERMINATORS = frozenset({"func.return", "stablehlo.return", "sdy.return"})
_MANUAL_COLLECTIVES = frozenset(
    [
        "all_reduce",
        "collective_permute",
        "collective_broadcast",
        "all_gather",
        "all_to_all",
        "reduce_scatter",
    ]
)
_HANDLERS = {
    "sdy.sharding_constraint": _Importer._constraint,
    "sdy.sharding_group": _Importer._group,
    "func.call": _Importer._call,
    "stablehlo.composite": _Importer._call,
    "stablehlo.optimization_barrier": _Importer._barrier,
    "stablehlo.while": _Importer._while,
    "stablehlo.case": _Importer._case,
    "stablehlo.if": _Importer._case,
    "sdy.manual_computation": _Importer._manual,
}


def _read_type(mlir_type: Any) -> tuple[tuple[int, ...], str, int]:
    """Shape, element type and bits per element; tokens and tuples hold nothing."""
    if not isinstance(mlir_type, ir.RankedTensorType):
        return (), str(mlir_type), 0
    element = mlir_type.element_type
    dtype = str(element)
    bits = _DTYPE_BITS.get(dtype)
    if bits is None:
        digits = re.search(r"\d+", dtype)
        bits = int(digits.group()) if digits else 8
    return tuple(mlir_type.shape), dtype, bits


def _read_rule(attribute: Any) -> Rule:
    rule = sdy.OpShardingRuleAttr(attribute)

    def tensors(mappings: Any) -> tuple[Dims, ...]:
        return tuple(
            tuple(
                tuple(sdy.DimMappingAttr(dim).factor_indices)
                for dim in sdy.TensorMappingAttr(tensor).dim_mappings
            )
            for tensor in mappings
        )

    return Rule(
        tuple(rule.factor_sizes),
        tensors(rule.operand_mappings),
        tensors(rule.result_mappings),
        frozenset(rule.reduction_factors),
        frozenset(rule.need_replication_factors) | frozenset(rule.blocked_propagation_factors),
        frozenset(rule.permutation_factors),
    )


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


def _static_trip_count(op: Any, cond: Any, body: Any) -> int | None:
    """Trip count of a loop that counts a scalar from a constant by a constant to a constant."""
    returned = next(o for o in cond.operations if o.operation.name == "stablehlo.return")
    compare = _owner(returned.operation.operands[0])
    if compare is None or compare.name != "stablehlo.compare":
        return None
    direction = str(compare.attributes["comparison_direction"])
    left, right = compare.operands
    counter, stop = _argument_index(left, cond), _constant(right)
    if counter is None or stop is None:
        return None
    start = _constant(op.operands[counter])
    step_result = next(
        o for o in body.operations if o.operation.name == "stablehlo.return"
    ).operation.operands[counter]
    add = _owner(step_result)
    if start is None or add is None or add.name not in ("stablehlo.add", "stablehlo.subtract"):
        return None
    first, second = (_argument_index(v, body) for v in add.operands)
    step = _constant(add.operands[1]) if first == counter else _constant(add.operands[0])
    if step is None or counter not in (first, second):
        return None
    if add.name == "stablehlo.subtract":
        step = -step
    return _count(start, stop, step, direction)


def _count(start: int, stop: int, step: int, direction: str) -> int | None:
    if "LT" in direction and step > 0:
        return max(0, -(-(stop - start) // step))
    if "LE" in direction and step > 0:
        return max(0, (stop - start) // step + 1)
    if "GT" in direction and step < 0:
        return max(0, -(-(start - stop) // -step))
    if "GE" in direction and step < 0:
        return max(0, (start - stop) // -step + 1)
    return None


def _owner(value: Any) -> Any | None:
    return None if isinstance(value.owner, ir.Block) else value.owner


def _argument_index(value: Any, block: Any) -> int | None:
    for index, argument in enumerate(block.arguments):
        if argument == value:
            return index
    return None


def _constant(value: Any) -> int | None:
    """The integer of a scalar constant, looking through conversions."""
    owner = _owner(value)
    while owner is not None and owner.name == "stablehlo.convert":
        owner = _owner(owner.operands[0])
    if owner is None or owner.name != "stablehlo.constant":
        return None
    data = np.asarray(ir.DenseElementsAttr(owner.attributes["value"]))
    return int(data.reshape(-1)[0]) if data.size and data.dtype.kind in "iub" else None


__all__ = ["DEFAULT_TRIP_COUNT", "ModuleNames", "module_to_graph"]
