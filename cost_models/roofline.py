"""Seconds of one op on one device: as slow as its arithmetic or its memory traffic.

Source: Williams, Waterman and Patterson (2009), Roofline.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache

import numpy as np

from cost_models.collectives import Amount, check_amount
from cost_models.errors import CostModelError
from cost_models.hardware import Hardware

OP_CLASSES: tuple[str, ...] = (
    "matmul",
    "convolution",
    "elementwise",
    "reduce",
    "gather",
    "scatter",
    "sort",
    "copy",
    "row copy",
    "held row copy",
    "convert",
    "fill",
    "custom",
    "nothing",
)
"""The kinds of op that are priced apart; "nothing" is what compilers remove, and free."""

_MATRIX_CLASSES = frozenset(("matmul", "convolution"))

_MEMORY_EFFICIENCY = {"gather": 0.5, "scatter": 0.25, "sort": 0.25, "nothing": math.inf}
"""Share of the memory bandwidth that scattered accesses reach, by op class; others reach all.

Source: house defaults, orders of magnitude until calibrated.
"""

_STREAMED = {
    "matmul": ("products",),
    "convolution": ("products",),
    "elementwise": ("elementwise",),
    "reduce": ("elementwise",),
    "copy": ("copies",),
    "row copy": ("row_copies", "copies"),
    "held row copy": ("held_row_copies", "row_copies", "copies"),
    "convert": ("conversions",),
    "fill": ("fills",),
}
"""Fields of `StreamedAccess` by op class; the first that is known counts."""

_DTYPE_PATTERNS: tuple[tuple[str, str], ...] = (
    (r"float64|f64|complex128|complex<f64>", "float64"),
    (r"float32|f32|complex64|complex<f32>|tf32", "float32"),
    (r"bfloat16|bf16", "bfloat16"),
    (r"float16|f16", "float16"),
    (r"float8|(float|f)(8|6|4)_?e[0-9]m[0-9](b[0-9]+)?(fn|fnu|fnuz|uz)?", "float8"),
    (r"(u?int|[su]?i|[su])(2|4|8)", "int8"),
    (r"bool|pred|i1", "int8"),
    (r"(u?int|[su]?i|[su])(16|32|64)|index|key<.*>", "float32"),
)


@lru_cache(maxsize=256)
def dtype_family(dtype: str) -> str:
    """The family whose peaks a dtype is computed at, from its NumPy, JAX or MLIR name.

    Integers of 16 bits and more run on the vector unit at the rate of float32; 4-bit and 6-bit
    types at that of the 8-bit ones; complex numbers at that of their parts.

    Raises:
        CostModelError: The name is no dtype's.
    """
    for pattern, family in _DTYPE_PATTERNS:
        if re.fullmatch(pattern, dtype.lower()):
            return family
    raise CostModelError(
        f'"{dtype}" is not the name of a dtype',
        where="argument `dtype`",
        fix='write it as NumPy or MLIR does: "float32", "bf16", "i32"',
    )


def matmul_tile_efficiency(
    matmul_dims: tuple[Amount, Amount, Amount],
    tile: tuple[int, int, int],
    *,
    may_turn: bool = True,
) -> Amount:
    """Share of the work of a padded matmul that is not padding, in (0, 1].

    Args:
        matmul_dims: (m, n, k) of the local product; numbers, or arrays of one shape.
        tile: (m, n, k) up to multiples of which each dimension is padded.
        may_turn: Whether the operands may change places, so that the better of (m, n) and (n, m)
            counts. Those of a convolution may not.

    Raises:
        CostModelError: A dimension is below 1.
    """
    m, n, k = matmul_dims
    if min(float(np.min(size)) for size in matmul_dims) < 1:
        raise CostModelError(
            f"a matmul of dimensions {matmul_dims} has none to compute",
            where="argument `matmul_dims`",
            fix="give (m, n, k) of the local product, each from 1 up",
        )
    as_given = _fill(m, tile[0]) * _fill(n, tile[1])
    turned = _fill(n, tile[0]) * _fill(m, tile[1]) if may_turn else as_given
    if isinstance(as_given, np.ndarray) or isinstance(turned, np.ndarray):
        return _fill(k, tile[2]) * np.maximum(as_given, turned)
    return _fill(k, tile[2]) * max(as_given, turned)


def _fill(size: Amount, tile: int) -> Amount:
    return size / (-(-size // tile) * tile)


def flops_per_second(
    hardware: Hardware,
    dtype: str,
    op_class: str,
    matmul_dims: tuple[int, int, int] | None = None,
) -> float:
    """Peak that an op of this class, dtype and shape can reach on one device.

    Raises:
        CostModelError: The dtype or the op class is unknown, or a matmul dimension is below 1.
    """
    if op_class not in OP_CLASSES:
        raise CostModelError(
            f'"{op_class}" is not an op class',
            where="argument `op_class`",
            fix=f"write one of {', '.join(OP_CLASSES)}",
        )
    family = dtype_family(dtype)
    if op_class == "nothing":
        return math.inf
    if op_class not in _MATRIX_CLASSES:
        return hardware.compute.vector.of(family)
    peak = hardware.compute.matmul.of(family)
    if matmul_dims is None:
        return peak
    return peak * matmul_tile_efficiency(matmul_dims, hardware.compute.matmul_tile)


def bytes_per_second(hardware: Hardware, op_class: str) -> float:
    """Memory bandwidth that an op of this class can reach on one device."""
    return hardware.memory.bytes_per_second * memory_efficiency(hardware, op_class)


def memory_efficiency(hardware: Hardware, op_class: str) -> float:
    """Share of the memory bandwidth that an op of this class reaches: as measured, or the house's.

    "nothing", which moves no byte, has an infinite one.
    """
    scattered = hardware.memory.scattered
    if scattered is not None and op_class in ("gather", "scatter", "sort"):
        return float(getattr(scattered, op_class))
    streamed = hardware.memory.streamed
    if streamed is not None and op_class in _STREAMED:
        shares = (getattr(streamed, name) for name in _STREAMED[op_class])
        return float(next(share for share in shares if share is not None))
    return _MEMORY_EFFICIENCY.get(op_class, 1.0)


def op_seconds(
    hardware: Hardware,
    *,
    flops: Amount,
    bytes_accessed: Amount,
    dtype: str,
    op_class: str,
    matmul_dims: tuple[int, int, int] | None = None,
) -> Amount:
    """Seconds of one op on one device; 0 for an op that neither computes nor moves anything.

    Args:
        hardware: The machine.
        flops: FLOP of the local op, padding left out.
        bytes_accessed: Bytes read and written by the local op.
        dtype: Of the operands.
        op_class: One of `OP_CLASSES`.
        matmul_dims: (m, n, k) of the local product, where it is one.

    Returns:
        Seconds, of the shape of the amounts.

    Raises:
        CostModelError: An amount is negative, infinite or not a number; a name is unknown.
    """
    check_amount(flops, "flops")
    check_amount(bytes_accessed, "bytes_accessed")
    compute = flops / flops_per_second(hardware, dtype, op_class, matmul_dims)
    memory = bytes_accessed / bytes_per_second(hardware, op_class)
    return busy_seconds(compute, memory, hardware.compute.kernel_launch_seconds)


def busy_seconds(compute_seconds: Amount, memory_seconds: Amount, launch_seconds: float) -> Amount:
    """The slower of arithmetic and memory plus the launch; 0 where both are 0."""
    if isinstance(compute_seconds, np.ndarray) or isinstance(memory_seconds, np.ndarray):
        slower = np.maximum(compute_seconds, memory_seconds)
        return np.where(slower > 0, slower + launch_seconds, 0.0)
    slower = max(compute_seconds, memory_seconds)
    return slower + launch_seconds if slower > 0 else 0.0
