"""The sharding of every value of a module, wherever it is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from autoshard.mlir_modules import (
    SHARDING,
    MlirOp,
    MlirValue,
    Module,
    boundary_shardings,
    functions_of,
    meshes_of,
    number_of,
    result_shardings,
    shape_of,
)
from autoshard.sharding import DimSharding, Sharding, parse_sharding

CARRYING = frozenset({"stablehlo.while"})
"""Their block arguments lie as their results do."""


@dataclass(slots=True)
class ValueShardings:
    """Reads shardings from a module; what nothing is written on is whole on every device.

    So is a value of one device: XLA brings it to those that read it, as Shardy's passes leave it.

    Args:
        module: Not changed between reads, but for ops that are added.
        mesh_name: What the mesh is called in shardings made up here.
    """

    module: Module
    mesh_name: str
    _arguments: dict[str, list[Sharding | None]] = field(default_factory=dict)
    _results: dict[str, list[Sharding | None]] = field(default_factory=dict)
    _functions: dict[str, MlirOp] = field(default_factory=dict)
    _of_one_device: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        meshes = meshes_of(self.module).items()
        self._of_one_device = frozenset(name for name, mesh in meshes if mesh.is_maximal)
        self._functions = functions_of(self.module)
        for name, function in self._functions.items():
            block = function.regions[0].blocks[0]
            count = len(block.arguments)
            self._arguments[name] = boundary_shardings(function, "arg_attrs", count)
            num_results = len(list(block.operations)[-1].operation.operands)
            self._results[name] = boundary_shardings(function, "res_attrs", num_results)

    def of(self, value: MlirValue) -> Sharding:
        """The sharding of a value: as written, else closed and uncut."""
        written = self.written(value)
        return written if written is not None else self._whole(value)

    def written(self, value: MlirValue) -> Sharding | None:
        """The sharding of a value, None where nothing is written on it."""
        found = self._all_written(value)
        if found is None:
            return None
        return self._on_all(found[number_of(value)], value)

    def is_on_one_device(self, value: MlirValue) -> bool:
        """True of a value that is written to be on one device of the mesh."""
        found = self._all_written(value)
        return found is not None and self._is_on_one(found[number_of(value)])

    def _is_on_one(self, sharding: Sharding | None) -> bool:
        if sharding is None:
            return False
        mesh = sharding.inlined_mesh
        return sharding.mesh_name in self._of_one_device if mesh is None else mesh.is_maximal

    def _on_all(self, sharding: Sharding | None, value: MlirValue) -> Sharding | None:
        return self._whole(value) if self._is_on_one(sharding) else sharding

    def _all_written(self, value: MlirValue) -> Sequence[Sharding | None] | None:
        """The shardings of a value and of those made beside it."""
        if not isinstance(value.owner, ir.Block):
            op = value.owner.operation
            return self.of_call(op) if op.name == "func.call" else _carried(op)
        op = value.owner.owner.operation
        if op.name == "func.func":
            return self._arguments[ir.StringAttr(op.attributes["sym_name"]).value]
        if op.name in CARRYING:
            return _carried(op)
        if op.name == "sdy.manual_computation":
            axes = manual_axes(op)
            return [without_axes(sharding, axes) for sharding in per_value(op, "in_shardings")]
        if op.name == "sdy.named_computation" and "in_shardings" in op.attributes:
            return per_value(op, "in_shardings")
        return None

    def of_call(self, op: MlirOp) -> list[Sharding | None]:
        """Shardings of a call's results: its own, else those of the function's results."""
        if SHARDING in op.attributes:
            return result_shardings(op)
        return self._results[callee(op)]

    def wanted(self, op: MlirOp) -> list[Sharding | None] | None:
        """Shardings an op that only hands values on wants its operands in; None for other ops.

        An entry is None where the operand is taken as it is.
        """
        found = self._wanted(op)
        if found is None:
            return None
        return [self._on_all(one, value) for one, value in zip(found, op.operands, strict=True)]

    def _wanted(self, op: MlirOp) -> Sequence[Sharding | None] | None:
        name = op.name
        if name in CARRYING or name == "stablehlo.optimization_barrier":
            return [self.of(result) for result in op.results]
        if name == "sdy.manual_computation":
            return list(per_value(op, "in_shardings"))
        if name == "sdy.named_computation":
            if "in_shardings" in op.attributes:
                return list(per_value(op, "in_shardings"))
            return [None] * len(op.operands)
        if name == "func.call":
            return self._arguments[callee(op)]
        parent = op.block.owner.operation
        if name == "func.return" or (name == "stablehlo.return" and parent.name == "func.func"):
            # The second kind is a computation that a custom call names: a comparator.
            return self._results[ir.StringAttr(parent.attributes["sym_name"]).value]
        if name in {"stablehlo.return", "sdy.return"}:
            return self._returned(op)
        return None

    def _returned(self, op: MlirOp) -> list[Sharding | None] | None:
        parent = op.block.owner.operation
        if parent.name in {"stablehlo.case", "stablehlo.if"}:
            return [self.of(result) for result in parent.results]
        if parent.name in CARRYING:
            is_body = op.block == parent.regions[1].blocks[0]
            return [self.of(result) for result in parent.results] if is_body else [None]
        if parent.name == "sdy.manual_computation":
            axes = manual_axes(parent)
            return [without_axes(s, axes) for s in per_value(parent, "out_shardings")]
        if parent.name == "sdy.named_computation" and "out_shardings" in parent.attributes:
            return list(per_value(parent, "out_shardings"))
        return None

    def _whole(self, value: MlirValue) -> Sharding:
        return Sharding.replicated_everywhere(len(shape_of(value) or ()), self.mesh_name)


def _carried(op: MlirOp) -> list[Sharding | None]:
    """Shardings of an op's results: its own, else those on their data-flow edges."""
    found = result_shardings(op)
    if SHARDING in op.attributes:
        return found
    for result in op.results:
        for use in result.uses:
            edge = use.owner.operation
            if edge.name == "sdy.data_flow_edge" and "sharding" in edge.attributes:
                found[number_of(result)] = parse_sharding(str(edge.attributes["sharding"]))
    return found


def per_value(op: MlirOp, name: str) -> list[Sharding]:
    """Shardings of an attribute that holds one for each value."""
    found = sdy.TensorShardingPerValueAttr(op.attributes[name])
    return [parse_sharding(str(sharding)) for sharding in found.shardings]


def manual_axes(op: MlirOp) -> frozenset[str]:
    """The axes a manual computation makes manual."""
    return frozenset(map(str, sdy.ManualAxesAttr(op.attributes["manual_axes"])))


def callee(op: MlirOp) -> str:
    """The name of the function that a call calls."""
    return str(ir.FlatSymbolRefAttr(op.attributes["callee"]).value)


def without_axes(sharding: Sharding, names: frozenset[str]) -> Sharding:
    """What a manual computation sees inside: its manual axes no longer cut anything."""
    return replace(
        sharding,
        dims=tuple(
            replace(dim, axes=tuple(a for a in dim.axes if a.name not in names))
            if any(a.name in names for a in dim.axes)
            else dim
            for dim in map(_plain, sharding.dims)
        ),
        replicated=tuple(a for a in sharding.replicated if a.name not in names),
    )


def _plain(dim: DimSharding) -> DimSharding:
    return dim if dim.axes or dim.is_open else DimSharding()


def blocks_of_work(op: MlirOp) -> Sequence[Any]:
    """The blocks of an op in which tensors of the program are worked on, none of reducers."""
    if op.name in HOLDS_PROGRAM:
        return [block for region in op.regions for block in region.blocks]
    return ()


HOLDS_PROGRAM = frozenset(
    {
        "func.func",
        "stablehlo.while",
        "stablehlo.case",
        "stablehlo.if",
        "sdy.manual_computation",
        "sdy.named_computation",
    }
)
