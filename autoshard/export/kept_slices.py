"""Slices of a module kept apart from those that cut its tensors, as `apply.sound_slices` does it.

XLA makes one slice of two and clamps the start on every device for itself (jaxlib 0.10.2).
"""

from __future__ import annotations

from math import prod

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from autoshard.apply.nested_ops import operations_of
from autoshard.apply.sound_slices import has_large_update
from autoshard.mlir_modules import SHARDING, MlirOp, MlirValue, Module, shape_of

_UPDATE = "stablehlo.dynamic_update_slice"
_UPDATES = ("stablehlo.scatter", _UPDATE)
_BARRIER = "stablehlo.optimization_barrier"


def keep_slices_apart(module: Module, num_devices: int) -> None:
    """Clamp the starts of slices that can be cut, put barriers before updates, in place.

    A slice of one element, or of all of them, cannot be cut along that dimension. A scatter of more
    rows than devices has several on each.
    """
    for op in list(operations_of(module.operation)):
        if op.name == "stablehlo.dynamic_slice":
            _clamp_starts(op)
        elif _is_merged(op, num_devices):
            _put_barrier(op)


def _is_merged(op: MlirOp, num_devices: int) -> bool:
    """True where XLA may merge the slice that cuts an op's operand with one of the op's own."""
    if op.name not in _UPDATES or len(op.results) != 1:
        return False
    whole, other = shape_of(op.operands[0]), shape_of(op.operands[1])
    assert whole is not None
    assert other is not None
    if op.name == _UPDATE:
        return has_large_update(whole, other, num_devices)
    numbers = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    rows = [size for dim, size in enumerate(other) if dim != numbers.index_vector_dim]
    return bool(whole) and prod(rows) <= num_devices


def _clamp_starts(op: MlirOp) -> None:
    whole, taken = shape_of(op.operands[0]), shape_of(op.results[0])
    assert whole is not None
    assert taken is not None
    for place, (size, length) in enumerate(zip(whole, taken, strict=True), start=1):
        start = op.operands[place]
        if 1 < length < size:
            op.operands[place] = _clamped(start, size - length, op)


def _clamped(start: MlirValue, last: int, reader: MlirOp) -> MlirValue:
    least, most = (
        _made("stablehlo.constant", [], start, reader, value=_splat(start, number))
        for number in (0, last)
    )
    return _made("stablehlo.clamp", [least, start, most], start, reader)


def _splat(like: MlirValue, number: int) -> ir.Attribute:
    kind = ir.RankedTensorType(like.type)
    return ir.DenseElementsAttr.get_splat(kind, ir.IntegerAttr.get(kind.element_type, number))


def _put_barrier(op: MlirOp) -> None:
    """A barrier before the operand, which is resharded to what the op makes before that."""
    operand = op.operands[0]
    barrier = _made(_BARRIER, [operand], operand, op)
    if SHARDING in op.attributes:
        barrier.owner.attributes[SHARDING] = op.attributes[SHARDING]
    op.operands[0] = barrier


def _made(
    name: str,
    operands: list[MlirValue],
    like: MlirValue,
    reader: MlirOp,
    **attributes: ir.Attribute,
) -> MlirValue:
    """A value of another's type, made right before an op."""
    made = ir.Operation.create(
        name,
        results=[like.type],
        operands=operands,
        attributes=attributes,
        loc=reader.location,
        ip=ir.InsertionPoint(reader),
    )
    return made.results[0]
