"""Slices of a module kept apart from those that cut its tensors, as `apply.sound_slices` does it.

XLA makes one slice of two and clamps the start on every device for itself (jaxlib 0.10.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from autoshard.apply.nested_ops import operations_of
from autoshard.apply.sound_slices import has_large_update
from autoshard.mlir_modules import SHARDING, MlirOp, MlirValue, Module, result_shardings, shape_of

_UPDATE = "stablehlo.dynamic_update_slice"
_UPDATES = ("stablehlo.scatter", _UPDATE)
_BARRIER = "stablehlo.optimization_barrier"


def keep_slices_apart(module: Module, num_devices: int) -> None:
    """Clamp starts along what can be cut, put barriers before updates, in place.

    A slice of one element, or of all of them, cannot be cut along that dimension. A scatter of more
    rows than devices has several on each.
    """
    for op in list(operations_of(module.operation)):
        if op.name == "stablehlo.dynamic_slice":
            taken = shape_of(op.results[0]) or ()
            _clamp_starts(op, 1, taken, [length > 1 for length in taken])
        if op.name == _UPDATE and (sharding := result_shardings(op)[0]) is not None:
            cut = [bool(dim.axes) for dim in sharding.dims]
            _clamp_starts(op, 2, shape_of(op.operands[1]) or (), cut)
        if _is_merged(op, num_devices):
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


def _clamp_starts(op: MlirOp, first: int, taken: Sequence[int], may_be_cut: Sequence[bool]) -> None:
    """Clamp the starts along some dimensions of a slice or update of `taken` elements.

    The start along the first dimension is operand `first`.
    """
    whole = shape_of(op.operands[0]) or ()
    dims = zip(whole, taken, may_be_cut, strict=True)
    for place, (size, length, is_cut) in enumerate(dims, start=first):
        if is_cut and length < size:
            op.operands[place] = _clamped(op.operands[place], size - length, op)


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
