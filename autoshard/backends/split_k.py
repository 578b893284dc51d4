"""Split-k matmuls of GPUs: in how many parts the summed dimension is computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

_TILE = 128  # rows and columns of one
_SPLITS = 2 ** np.arange(12)
_PARTIAL_BITS = 32


@dataclass(frozen=True, slots=True)
class Products:
    """Matrix products on one device, one for each candidate.

    Args:
        rows: float64[num_candidates], as all sizes.
        columns: Of the result.
        summed: Elements of each sum.
        batch: Products of one call.
        operand_bits: Of an element of either operand.
        result_bits: Of an element of the result.
    """

    rows: FloatArray
    columns: FloatArray
    summed: FloatArray
    batch: FloatArray
    operand_bits: tuple[int, int]
    result_bits: int


def num_splits(products: Products, weights: Sequence[float]) -> IntArray:
    """int64[num_candidates]: parts in which each product is computed, which its readers sum.

    Args:
        products: On one device.
        weights: Multiprocessors of the GPU, cost of an operation, of a byte that the product moves,
            of a byte that the sum of the parts moves, and of its start.

    Source: openxla/xla, `splitk_rewriter.cc`, `EstimateGemmCostAfterSplitK`.
    """
    multiprocessors, operation, moved, resummed, start = weights
    rows, columns, summed, batch = (
        sizes[:, None]
        for sizes in (products.rows, products.columns, products.summed, products.batch)
    )
    tiles = batch * _SPLITS * np.ceil(rows / _TILE) * np.ceil(columns / _TILE)
    tile = np.minimum(rows, _TILE) * np.minimum(columns, _TILE)
    waves = np.maximum(1.0, tiles * tile / (multiprocessors * _TILE**2))
    arithmetic = 2.0 * tile * np.ceil(summed / _SPLITS) * waves * operation
    left, right = products.operand_bits
    read = batch * summed * (rows * left + columns * right) / 8
    made = batch * rows * columns
    written = made * np.where(_SPLITS > 1, _SPLITS * _PARTIAL_BITS, products.result_bits) / 8
    cost = np.maximum(arithmetic, (read + written) * moved)
    summing = start + (written + made * products.result_bits / 8) * resummed
    total = cost + np.where(_SPLITS > 1, summing, 0.0)
    found: IntArray = _SPLITS[np.argmin(total, axis=1)]
    return found
