"""`sdy.named_computation`: a name around ops, with shardings at its border; taken apart."""

from __future__ import annotations

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from autoshard.apply.nested_ops import operations_of
from autoshard.export.value_shardings import per_value
from autoshard.mlir_modules import (
    MlirOp,
    MlirValue,
    shape_of,
    sharding_attribute,
)
from autoshard.sharding import Sharding


def inline_named_computations(holder: MlirOp) -> None:
    """Put what named computations hold in their place, in place.

    Shardings at their borders become constraints, but for those that leave everything open.

    Args:
        holder: A function or a module.
    """
    found = [op for op in operations_of(holder) if op.name == "sdy.named_computation"]
    for op in reversed(found):  # inner ones before those around them
        _inline(op)


def _inline(op: MlirOp) -> None:
    block = op.regions[0].blocks[0]
    *body, terminator = [inner.operation for inner in block.operations]
    operands = _constrained(op, list(op.operands), "in_shardings")
    for argument, operand in zip(block.arguments, operands, strict=True):
        argument.replace_all_uses_with(operand)
    for inner in body:
        inner.move_before(op)
    returned = _constrained(op, list(terminator.operands), "out_shardings")
    for result, value in zip(op.results, returned, strict=True):
        result.replace_all_uses_with(value)
    op.erase()


def _constrained(op: MlirOp, values: list[MlirValue], side: str) -> list[MlirValue]:
    if side not in op.attributes:
        return values
    return [
        _constraint(value, sharding, op) if _says_something(sharding, value) else value
        for value, sharding in zip(values, per_value(op, side), strict=True)
    ]


def _says_something(sharding: Sharding, value: MlirValue) -> bool:
    is_said = sharding.is_fully_closed or any(sharding.axis_refs())
    return is_said and bool(shape_of(value))


def _constraint(value: MlirValue, sharding: Sharding, before: MlirOp) -> MlirValue:
    made = sdy.ShardingConstraintOp(
        value,
        sharding_attribute(sharding),
        ip=ir.InsertionPoint(before),
        loc=before.location,
    )
    return made.operation.results[0]
