"""Floating-point operations of one op run whole, once.

A fused multiply-add counts as two, a complex multiply-add as eight; any other element-wise result
as one. Comparisons of a sort and of a pooling window count like additions.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import log2, prod
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import chlo, stablehlo

from autoshard.frontend import op_kinds
from autoshard.frontend.graph_builder import TensorType
from autoshard.frontend.windows import integers, read_windows
from autoshard.graph.program import OpClass

SCAN_BLOCK = 16
"""XLA computes a long running sum in blocks of this many elements, not by one window each.

Source: `ReduceWindowRewriter` as XLA's CPU and GPU compilers call it.
"""


def op_flops(
    op: Any,
    name: str,
    op_class: OpClass,
    operands: list[TensorType],
    results: list[TensorType],
) -> float:
    """Floating-point operations of one MLIR operation.

    Args:
        op: The operation.
        name: Its name without dialect, or the target of a custom call.
        op_class: As `op_kinds.op_class` says.
        operands: Types of its operands.
        results: Types of its results.
    """
    count = _count_of(name)
    if count is not None:
        flops = count(op, [t[0] for t in operands], [t[0] for t in results])
        if name not in _REAL_COUNTS and operands[0][1].startswith("complex"):
            flops *= 4.0
        return float(flops)
    if op_class is OpClass.COPY or name in op_kinds.MANUAL_COLLECTIVES:
        return 0.0
    return float(max((prod(t[0]) for t in (*operands, *results)), default=0))


Shapes = list[tuple[int, ...]]
Count = Callable[[Any, Shapes, Shapes], float]


def _count_of(name: str) -> Count | None:
    routine = _LAPACK.fullmatch(name) if "_" in name else None
    return _COUNTS.get(name) if routine is None else _LAPACK_COUNTS[routine[1]]


def _dot_general(op: Any, operands: Shapes, results: Shapes) -> float:
    numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    summed: int = prod([operands[0][dim] for dim in numbers.lhs_contracting_dimensions])
    return 2.0 * prod(results[0]) * summed


def _ragged_dot(op: Any, operands: Shapes, results: Shapes) -> float:
    """Every row meets the matrix of every group: compilers mask those of other groups."""
    del results
    numbers = chlo.RaggedDotDimensionNumbers(op.attributes["ragged_dot_dimension_numbers"])
    others = {
        *numbers.rhs_batching_dimensions,
        *numbers.rhs_contracting_dimensions,
        *numbers.rhs_group_dimensions,
    }
    free = prod(size for dim, size in enumerate(operands[1]) if dim not in others)
    return 2.0 * prod(operands[0]) * free * prod(operands[2])


def _convolution(op: Any, operands: Shapes, results: Shapes) -> float:
    """Multiply-adds with real input elements: padding and the holes of dilation are not counted."""
    inputs, kernel = operands
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    pairs = 1
    for window in read_windows(op, "convolution", operands):
        pairs *= window.hits(inputs[window.image], results[0][window.made])
    batch_groups: int = ir.IntegerAttr(op.attributes["batch_group_count"]).value
    images: int = inputs[numbers.input_batch_dimension] // batch_groups
    features_out: int = kernel[numbers.kernel_output_feature_dimension]
    features_in: int = kernel[numbers.kernel_input_feature_dimension]  # of one group
    return 2.0 * images * features_out * features_in * pairs


def _reduce(op: Any, operands: Shapes, results: Shapes) -> float:
    del op, results
    return float(sum(prod(shape) for shape in operands))


def _reduce_window(op: Any, operands: Shapes, results: Shapes) -> float:
    window = integers(op, "window_dimensions", len(operands[0]), 1)
    taps = 1
    for dim, (length, size) in enumerate(zip(window, operands[0], strict=True)):
        is_scan = length == size and results[0][dim] == size
        taps *= min(length, SCAN_BLOCK) if is_scan else length
    return float(taps * sum(prod(shape) for shape in results))


def _select_and_scatter(op: Any, operands: Shapes, results: Shapes) -> float:
    del results
    window = integers(op, "window_dimensions", len(operands[0]), 1)
    return float((prod(window) + 1) * prod(operands[1]))


def _scatter(op: Any, operands: Shapes, results: Shapes) -> float:
    del op
    return float(sum(prod(shape) for shape in operands[len(results) + 1 :]))


def _gather(op: Any, operands: Shapes, results: Shapes) -> float:
    """Nothing is computed, but every element found is addressed."""
    del op, operands
    return float(prod(results[0]))


def _sort(op: Any, operands: Shapes, results: Shapes) -> float:
    del results
    shape = operands[0]
    dim = ir.IntegerAttr(op.attributes["dimension"]).value % len(shape) if shape else 0
    length = shape[dim] if shape else 1
    return float(prod(shape) * max(1.0, log2(length)) if length else 0.0)


def _top_k(op: Any, operands: Shapes, results: Shapes) -> float:
    del op
    chosen = results[0][-1]
    return float(prod(operands[0]) * max(1.0, log2(chosen)) if chosen else 0.0)


def _fft(op: Any, operands: Shapes, results: Shapes) -> float:
    """5 N log2 N for a complex transform of N points, half of it for a real one.

    Source: the count that FFTW's authors use to compare transforms (Frigo and Johnson, 2005).
    """
    lengths = integers(op, "fft_length", 0, 1)
    kind = stablehlo.FftTypeAttr(op.attributes["fft_type"]).value
    shape = operands[0] if kind == "RFFT" else results[0]
    points = prod(lengths)
    if not points or not prod(shape):
        return 0.0
    transforms = prod(shape) // points
    per_transform = 5.0 * points * log2(points)
    return transforms * (per_transform / 2 if kind in ("RFFT", "IRFFT") else per_transform)


# Matrix factorisations. Source: Golub and Van Loan, Matrix Computations (4th ed.), the counts given
# with each algorithm; leading terms only.


def _matrix(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Number of matrices, rows, columns."""
    *batch, rows, columns = shape
    return prod(batch), rows, columns


def _cholesky(op: Any, operands: Shapes, results: Shapes) -> float:
    del op, results
    batch, rows, _ = _matrix(operands[0])
    return batch * rows**3 / 3


def _triangular_solve(op: Any, operands: Shapes, results: Shapes) -> float:
    del op, results
    return float(prod(operands[1]) * operands[0][-1])


def _lu(op: Any, operands: Shapes, results: Shapes) -> float:
    del op, results
    batch, rows, columns = _matrix(operands[0])
    small = min(rows, columns)
    large = max(rows, columns)
    return batch * (large * small**2 - small**3 / 3)


def _qr(op: Any, operands: Shapes, results: Shapes) -> float:
    del op, results
    batch, rows, columns = _matrix(operands[0])
    small = min(rows, columns)
    large = max(rows, columns)
    return batch * 2 * (large * small**2 - small**3 / 3)


def _eigh(op: Any, operands: Shapes, results: Shapes) -> float:
    del op, results
    batch, rows, _ = _matrix(operands[0])
    return 9.0 * batch * rows**3


def _svd(op: Any, operands: Shapes, results: Shapes) -> float:
    del op, results
    batch, rows, columns = _matrix(operands[0])
    small = min(rows, columns)
    large = max(rows, columns)
    return batch * (4.0 * large * small**2 + 8.0 * small**3)


def _eig(op: Any, operands: Shapes, results: Shapes) -> float:
    del op, results
    batch, rows, _ = _matrix(operands[0])
    return 25.0 * batch * rows**3


_COUNTS: dict[str, Count] = {
    "dot_general": _dot_general,
    "ragged_dot": _ragged_dot,
    "convolution": _convolution,
    "reduce": _reduce,
    "reduce_window": _reduce_window,
    "select_and_scatter": _select_and_scatter,
    "scatter": _scatter,
    "gather": _gather,
    "sort": _sort,
    "top_k": _top_k,
    "mhlo.topk": _top_k,
    "fft": _fft,
    "cholesky": _cholesky,
    "triangular_solve": _triangular_solve,
    "LuDecomposition": _lu,
    "Qr": _qr,
    "ProductOfElementaryHouseholderReflectors": _qr,
    "Eigh": _eigh,
}

# LAPACK routines by the part of their name that follows the element type.
_LAPACK_COUNTS: dict[str, Count] = {
    "potrf": _cholesky,
    "trsm": _triangular_solve,
    "getrf": _lu,
    "geqrf": _qr,
    "orgqr": _qr,
    "ungqr": _qr,
    "syevd": _eigh,
    "heevd": _eigh,
    "gesdd": _svd,
    "gesvd": _svd,
    "gesvdj": _svd,
    "geev": _eig,
    "gees": _eig,
}

_LAPACK = re.compile(
    r"(?:lapack_[sdcz]|cusolver_|hipsolver_|cublas_)(" + "|".join(_LAPACK_COUNTS) + r")\w*"
)

_REAL_COUNTS = frozenset(
    "fft gather reduce reduce_window scatter select_and_scatter sort top_k".split()
)
