"""Reshards as collectives: each `sdy.reshard` becomes the cheapest sequence that does it."""

from __future__ import annotations

from autoshard.apply.nested_ops import operations_of
from autoshard.collectives import ModulePrices, ReceivedBytes, find_collectives
from autoshard.export.collective_ops import (
    insert_collectives,
    read_collective,
)
from autoshard.export.module_mesh import ModuleMesh
from autoshard.export.value_shardings import ValueShardings
from autoshard.frontend.tensor_types import read_tensor_type
from autoshard.mlir_modules import MlirOp, MlirValue, Module
from autoshard.sharding import Sharding


def reshards_to_collectives(module: Module, prices: ModulePrices | None = None) -> None:
    """Replace every reshard of a module by collectives, in place.

    Reshards that follow one another are one. A sum whose only reader is a reshard is taken with it,
    so that it may end in a reduce-scatter.

    Args:
        module: Its shardings are taken as closed.
        prices: What a collective costs; the bytes received if not given.

    Raises:
        ExportError: The module has no mesh, or shardings on several.
    """
    prices = prices or ReceivedBytes()
    mesh = ModuleMesh(module)
    values = ValueShardings(module, mesh.name)
    for op in operations_of(module.operation):
        if op.name == "sdy.reshard":
            _skip_through(op)
    for op in list(operations_of(module.operation)):
        if op.name == "sdy.reshard":
            _convert(op, mesh, values, prices)


def _skip_through(op: MlirOp) -> None:
    """Read what another reshard reads that only this one reads."""
    while (before := _maker(op.operands[0])) is not None:
        if before.name != "sdy.reshard" or not _is_read_once(before.results[0]):
            return
        op.operands[0] = before.operands[0]
        before.erase()


def _convert(op: MlirOp, mesh: ModuleMesh, values: ValueShardings, prices: ModulePrices) -> None:
    source, start = op.operands[0], mesh.plain(values.of(op.operands[0]), op)
    goal = mesh.plain(values.of(op.results[0]), op)
    summing = _maker(source)
    if summing is not None and summing.name == "sdy.all_reduce" and _is_read_once(source):
        operand = mesh.plain(values.of(summing.operands[0]), summing)
        start = read_collective(summing, operand, mesh.at(op)).before
        source = summing.operands[0]
    else:
        summing = None
    shape, _, bits = read_tensor_type(source.type)
    steps = find_collectives(
        start, _summed(goal, start), mesh.at(op), shape, bits=bits, prices=prices
    )
    op.results[0].replace_all_uses_with(insert_collectives(source, steps, op))
    op.erase()
    if summing is not None:
        summing.erase()


def _summed(goal: Sharding, start: Sharding) -> Sharding:
    """The goal; what it leaves to sum must be so before."""
    left = tuple(axis for axis in goal.unreduced if axis in start.unreduced)
    return Sharding(goal.dims, unreduced=left, mesh_name=goal.mesh_name)


def _maker(value: MlirValue) -> MlirOp | None:
    owner = value.owner
    return owner.operation if hasattr(owner, "operation") else None


def _is_read_once(value: MlirValue) -> bool:
    return sum(1 for _ in value.uses) == 1
