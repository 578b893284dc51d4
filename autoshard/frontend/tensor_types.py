"""MLIR tensor types as shape, element type and bits."""

from __future__ import annotations

import re
from typing import Any

from jaxlib.mlir import ir

from autoshard.errors import ExportError
from autoshard.frontend.graph_builder import TensorType

_BITS = {"i1": 8, "ui1": 8, "index": 64, "complex<f32>": 64, "complex<f64>": 128}
_DIGITS = re.compile(r"\d+")


def read_tensor_type(mlir_type: Any) -> TensorType:
    """Shape, element type and bits per element; tokens and tuples hold nothing.

    Booleans take a byte each; elements below a byte (`i4`, `f4E2M1FN`) are taken as packed, the way
    accelerators keep them.

    Raises:
        ExportError: The type has a dimension of unknown size.
    """
    if not isinstance(mlir_type, ir.RankedTensorType):
        return (), str(mlir_type), 0
    if not mlir_type.has_static_shape:
        raise ExportError(
            f"a tensor of type {mlir_type} has no fixed size",
            fix="trace with arrays or ShapeDtypeStructs of fixed shapes, not symbolic ones",
        )
    dtype = str(mlir_type.element_type)
    bits = _BITS.get(dtype)
    if bits is None:
        digits = _DIGITS.search(dtype)
        bits = int(digits.group()) if digits else 8
    return tuple(mlir_type.shape), dtype, bits
