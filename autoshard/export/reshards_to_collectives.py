"""Reshards as collectives: each `sdy.reshard` becomes the cheapest sequence that does it.

Between meshes in other device orders it becomes the one that jaxlib's own pass finds. From one
device to all a reshard stays: Shardy has no collective for it.
"""

from __future__ import annotations

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from autoshard.apply.nested_ops import operations_of
from autoshard.collectives import ModulePrices, ReceivedBytes, find_collectives
from autoshard.export.collective_ops import (
    insert_collectives,
    read_collective,
)
from autoshard.export.module_mesh import ModuleMesh, OtherMeshError
from autoshard.export.value_shardings import ValueShardings
from autoshard.frontend.tensor_types import read_tensor_type
from autoshard.mlir_modules import MlirOp, MlirValue, Module, run_passes, sharding_attribute
from autoshard.sharding import Sharding


def reshards_to_collectives(module: Module, prices: ModulePrices | None = None) -> None:
    """Replace every reshard of a module by collectives, in place.

    Reshards that follow one another are one. A sum whose only reader is a reshard is taken with it,
    so that it may end in a reduce-scatter.

    Args:
        module: Its shardings are taken as closed.
        prices: What a collective costs; the bytes received if not given.

    Raises:
        ExportError: The module has no mesh.
    """
    reshards = [op for op in operations_of(module.operation) if op.name == "sdy.reshard"]
    if not reshards:
        return
    prices = prices or ReceivedBytes()
    mesh = ModuleMesh(module)
    values = ValueShardings(module, mesh.name)
    for op in reshards:
        _skip_through(op)
    left = [op for op in operations_of(module.operation) if op.name == "sdy.reshard"]
    between_orders = [op for op in left if not _convert(op, mesh, values, prices)]
    if between_orders:
        run_passes(
            module,
            "func.func(sdy-reshard-to-collectives)",
            step="turning reshards between device orders into collectives",
        )


def _skip_through(op: MlirOp) -> None:
    """Read what another reshard reads that only this one reads."""
    while (before := _maker(op.operands[0])) is not None:
        if before.name != "sdy.reshard" or not _is_read_once(before.results[0]):
            return
        op.operands[0] = before.operands[0]
        before.erase()


def _convert(op: MlirOp, mesh: ModuleMesh, values: ValueShardings, prices: ModulePrices) -> bool:
    """Replace a reshard, if the mesh can say both of its shardings."""
    source = op.operands[0]
    try:
        start, goal = (mesh.plain(values.of(value), op) for value in (source, op.results[0]))
    except OtherMeshError:
        return False
    summing = _maker(source)
    if summing is not None and summing.name == "sdy.all_reduce" and _is_read_once(source):
        operand = mesh.plain(values.of(summing.operands[0]), summing)
        start = read_collective(summing, operand, mesh.at(op)).before
        source = summing.operands[0]
    else:
        summing = None
    if values.is_on_one_device(source):
        if start == goal:
            return True
        whole = sdy.ReshardOp(
            source, sharding_attribute(start), ip=ir.InsertionPoint(op), loc=op.location
        )
        source = whole.operation.results[0]
    shape, _, bits = read_tensor_type(source.type)
    steps = find_collectives(
        start, _summed(goal, start), mesh.at(op), shape, bits=bits, prices=prices
    )
    op.results[0].replace_all_uses_with(insert_collectives(source, steps, op))
    op.erase()
    if summing is not None:
        summing.erase()
    return True


def _summed(goal: Sharding, start: Sharding) -> Sharding:
    """The goal; what it leaves to sum must be so before."""
    left = tuple(axis for axis in goal.unreduced if axis in start.unreduced)
    return Sharding(goal.dims, unreduced=left, mesh_name=goal.mesh_name)


def _maker(value: MlirValue) -> MlirOp | None:
    owner = value.owner
    return owner.operation if hasattr(owner, "operation") else None


def _is_read_once(value: MlirValue) -> bool:
    return sum(1 for _ in value.uses) == 1
