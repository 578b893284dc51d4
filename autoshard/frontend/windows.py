"""The windows of an MLIR operation: convolutions, pools, pads that shift, scatters, gathers."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from autoshard.graph.window import Window

Shape = tuple[int, ...]


def read_windows(op: Any, name: str, operands: Sequence[Shape]) -> tuple[Window, ...]:
    """Windows of an op along the dimensions of its image, in their order; none of other ops.

    Args:
        op: The MLIR operation.
        name: Its name without dialect.
        operands: Shapes of its operands.
    """
    if name == "convolution":
        return _of_convolution(op, operands[1])
    if name in ("reduce_window", "select_and_scatter"):
        return _of_pool(op, len(operands[0]))
    if name == "pad":
        return _of_shift(op, len(operands[0]))
    return ()


def moved_windows(op: Any, name: str, operands: Sequence[Shape]) -> int:
    """Windows of a scatter or gather that its indices move along a dimension of the operand.

    0 where indices pick elements along it, as `x.at[rows]` does and `vmap` of
    `dynamic_update_slice` does not, and for other ops.
    """
    if name not in ("gather", "scatter"):
        return 0
    if name == "scatter":
        numbers = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
        moved, left_out = numbers.scattered_dims_to_operand_dims, numbers.inserted_window_dims
        batch, window = numbers.input_batching_dims, numbers.update_window_dims
        sizes, least = [operands[2][dim] for dim in window], 1
    else:
        numbers = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
        moved, left_out = numbers.start_index_map, numbers.collapsed_slice_dims
        batch, sizes, least = numbers.operand_batching_dims, integers(op, "slice_sizes", 0, 0), 2
        sizes = [size for dim, size in enumerate(sizes) if dim not in (*left_out, *batch)]
    kept = [dim for dim in range(len(operands[0])) if dim not in (*left_out, *batch)]
    is_moved = any(
        dim in moved and least <= size < operands[0][dim]
        for dim, size in zip(kept, sizes, strict=True)
    )
    indices = operands[1]
    vectors = [size for dim, size in enumerate(indices) if dim != numbers.index_vector_dim]
    return prod(vectors) if is_moved else 0


def _of_convolution(op: Any, kernel: Shape) -> tuple[Window, ...]:
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    image, made = numbers.input_spatial_dimensions, numbers.output_spatial_dimensions
    taps = numbers.kernel_spatial_dimensions
    rank = len(image)
    strides = integers(op, "window_strides", rank, 1)
    paddings = integers(op, "padding", 2 * rank, 0)
    base_dilations = integers(op, "lhs_dilation", rank, 1)
    dilations = integers(op, "rhs_dilation", rank, 1)
    found = [
        Window(
            image=image[axis],
            made=made[axis],
            kernel=taps[axis],
            size=kernel[taps[axis]],
            stride=strides[axis],
            low=paddings[2 * axis],
            base_dilation=base_dilations[axis],
            dilation=dilations[axis],
        )
        for axis in range(rank)
    ]
    return tuple(sorted(found, key=lambda window: window.image))


def _of_pool(op: Any, rank: int) -> tuple[Window, ...]:
    sizes = integers(op, "window_dimensions", rank, 1)
    strides = integers(op, "window_strides", rank, 1)
    paddings = integers(op, "padding", 2 * rank, 0)
    base_dilations = integers(op, "base_dilations", rank, 1)
    dilations = integers(op, "window_dilations", rank, 1)
    found = (
        Window(
            image=dim,
            made=dim,
            size=sizes[dim],
            stride=strides[dim],
            low=paddings[2 * dim],
            base_dilation=base_dilations[dim],
            dilation=dilations[dim],
        )
        for dim in range(rank)
    )
    return tuple(one for one in found if one != Window(image=one.image, made=one.made, size=1))


def _of_shift(op: Any, rank: int) -> tuple[Window, ...]:
    """Of a pad that moves elements along a dimension, as many out of it as it puts in."""
    low, high, between = (
        integers(op, where, rank, 0)
        for where in ("edge_padding_low", "edge_padding_high", "interior_padding")
    )
    return tuple(
        Window(image=dim, made=dim, size=1, low=low[dim])
        for dim in range(rank)
        if low[dim] and low[dim] == -high[dim] and not between[dim]
    )


def integers(op: Any, attribute: str, number: int, default: int) -> list[int]:
    """An integer array attribute, flat; `number` defaults where it is left out."""
    if attribute not in op.attributes:
        return [default] * number
    found = op.attributes[attribute]
    if isinstance(found, ir.DenseI64ArrayAttr):
        return list(found)
    return [int(n) for n in np.asarray(ir.DenseElementsAttr(found)).reshape(-1)]
