"""The referee: what a sharded module costs, counted from what is written in it."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from autoshard.collectives import (
    Collective,
    ModulePrices,
    ReceivedBytes,
    collective_cost,
    find_collectives,
)
from autoshard.export.collective_ops import KIND_BY_OP, read_collective
from autoshard.export.module_mesh import ModuleMesh
from autoshard.export.op_rules import (
    SOURCES,
    WITHOUT_RULE,
    rule_of,
    work_of,
    write_rules,
)
from autoshard.export.value_shardings import ValueShardings, blocks_of_work
from autoshard.export.verify_module import axes_by_factor
from autoshard.frontend.tensor_types import read_tensor_type
from autoshard.mlir_modules import (
    MlirOp,
    MlirValue,
    Module,
    functions_of,
    module_context,
    parse_module,
    shape_of,
)
from autoshard.sharding import AxisRef, Sharding


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleCost:
    """What one run of a module costs; loop bodies and all branches count once.

    Args:
        collectives: In program order.
        communication: Of all collectives.
        work: Of all ops.
    """

    collectives: tuple[Collective, ...]
    communication: float
    work: float

    @property
    def total(self) -> float:
        return self.communication + self.work


def module_cost(module: str | bytes, prices: ModulePrices | None = None) -> ModuleCost:
    """The cost of a module whose reshards are explicit; those left are counted as collectives.

    Args:
        module: Text or bytecode.
        prices: In which unit; the bytes a device receives if not given.

    Raises:
        ExportError: The module does not parse, or has no mesh.
    """
    with module_context():
        return cost_of(parse_module(module), prices)


def cost_of(module: Module, prices: ModulePrices | None = None) -> ModuleCost:
    """As `module_cost`, of a parsed module, whose ops get their sharding rules written on."""
    write_rules(module)
    return _Referee(module, prices or ReceivedBytes()).count()


class _Referee:
    def __init__(self, module: Module, prices: ModulePrices) -> None:
        self.module = module
        self.prices = prices
        self.mesh = ModuleMesh(module)
        self.values = ValueShardings(module, self.mesh.name)
        self.found: list[Collective] = []
        self.communication = 0.0
        self.work = 0.0

    def count(self) -> ModuleCost:
        for function in functions_of(self.module).values():
            self._visit(function)
        return ModuleCost(
            collectives=tuple(self.found), communication=self.communication, work=self.work
        )

    def _visit(self, holder: MlirOp) -> None:
        for block in blocks_of_work(holder):
            for op in [found.operation for found in block.operations]:
                if op.name in KIND_BY_OP:
                    operand = self._plain(op.operands[0], op)
                    self._add([read_collective(op, operand, self.mesh.at(op))], op)
                elif op.name == "sdy.reshard":
                    self._add(self._steps(op), op)
                elif op.name not in WITHOUT_RULE and op.name not in SOURCES:
                    self._work(op)
                self._visit(op)

    def _plain(self, value: MlirValue, op: MlirOp) -> Sharding:
        return self.mesh.plain(self.values.of(value), op)

    def _steps(self, op: MlirOp) -> list[Collective]:
        shape, _, bits = read_tensor_type(op.results[0].type)
        start, goal = self._plain(op.operands[0], op), self._plain(op.results[0], op)
        mesh = self.mesh.at(op)
        return list(find_collectives(start, goal, mesh, shape, bits=bits, prices=self.prices))

    def _add(self, steps: list[Collective], op: MlirOp) -> None:
        shape, _, bits = read_tensor_type(op.results[0].type)
        for step in steps:
            self.found.append(step)
            self.communication += collective_cost(step, self.mesh.at(op), shape, bits, self.prices)

    def _work(self, op: MlirOp) -> None:
        tensors = [value for value in (*op.operands, *op.results) if shape_of(value)]
        if not tensors:
            return
        work = work_of(op)
        num_bytes = 0.0
        for value in tensors:
            shape, _, bits = read_tensor_type(value.type)
            num_bytes += prod(shape) * bits / 8 / self._pieces(value, op)
        self.work += self.prices.work(
            work.flops / self._cut(op), num_bytes, work.dtype, work.op_class
        )

    def _pieces(self, value: MlirValue, op: MlirOp) -> int:
        mesh = self.mesh.at(op)
        return prod(ref.size_on(mesh) for dim in self._plain(value, op).dims for ref in dim.axes)

    def _cut(self, op: MlirOp) -> int:
        """Pieces that an op's work falls into."""
        rule, _ = rule_of(op)
        if rule is None or len(rule.operands) != len(op.operands):
            return 1
        mesh = self.mesh.at(op)
        cut: dict[int, tuple[AxisRef, ...]] = {}
        for value, dims in zip(
            (*op.operands, *op.results), (*rule.operands, *rule.results), strict=True
        ):
            if shape_of(value):
                by_factor, _ = axes_by_factor(dims, self._plain(value, op), rule, mesh)
                cut.update(by_factor)
        return prod(ref.size_on(mesh) for axes in cut.values() for ref in axes)
