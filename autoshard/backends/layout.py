"""Widths of elements, tiles, and dimension orders that a compiler gives tensors."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutPolicy:
    """How tensors lie in memory and go through the matrix units.

    Args:
        widened_bits: (element type, bits): the width in which intermediates are computed, kept and
            sent, where wider than the type.
        multiplied_bits: (element type, bits): the width in which a matmul at default precision
            reads an operand, where narrower than the type.
        num_lanes: Elements of a tile's row; narrower rows are padded to it. 1: no tiles.
        num_sublanes: Rows of a tile.
        word_bits: Bits of a word; narrower elements of several rows share one.
        max_vector_tile: Elements of the largest tile of a vector.
        mxu_min_rows: A matmul of fewer rows takes the time of one of so many.
        mxu_fill_cycles: Cycles that fill and drain the matrix units, beside the arithmetic.
        mxu_window_cycles: Cycles in which a matmul's first windows are read and its last ones
            written, over the square root of those of its arithmetic.
        hbm_window: Rows, and columns, of the result of a matmul that are computed at a time where
            neither operand waits on the chip; 0: however many, operands are read once.
        hbm_window_share: Share of the memory bandwidth at which operands then come, window by
            window.
        ragged_cycles: Cycles of a ragged matmul that runs as a convolution over the groups, for
            each pair of them: by element of its result, and in all where it contracts the rows.
        ragged_tile_rows: Rows of a tile of a ragged matmul that a kernel computes tile by tile,
            once for each group in it; 0: all rows meet the matrices of all groups.
        turn_cycles: Cycles for 1,024 elements of a copy that exchanges the last two dimensions; 0:
            what batched matmuls read and write is not copied for its dimension order.
        row_slice_cycles: Cycles for a tile's row, of words and of narrower elements, in which rows
            of a slice that lie apart are put together; empty: slices are read where they lie.
        depthwise_macs: Multiply-adds a cycle of a depthwise convolution, which vector units
            compute, and of its kernel's gradient; empty: those of the matrix units.
        dilated_rows: A convolution of a dilated image takes its pixels one by one, and where it has
            fewer images the time of so many.
        min_conv_batch: Images on a device below which a convolution moves rows of pixels into the
            batch (space-to-batch); 1: never.
        fast_convert_bytes: Bytes, read and written together, up to which a conversion takes half
            the time per byte.
        keeps_matmul_layouts: Dimensions stay in the order in which a matmul made them; tensors that
            meet them in another order are copied into that one.
        keeps_collective_layouts: The result of a collective that is then transposed is read in the
            order in which it was sent; tensors beside it are copied into that order.
        relayout_copies: Copies that a tensor in another dimension order costs its element-wise
            readers.
        copies_conv_gradient_operands: The gradient of a convolution copies its operands into
            another dimension order.
        copies_conv_operands: Convolutions read copies of kernels in another dimension order and of
            unevenly padded images, which they share with those of the backward pass.
        transposes_matmul_operands: Operands of more dimensions than matrices are copied into the
            order of matrices.
        copies_summed_stacks: A stack that a loop reads for gradients that sum over its leading
            dimensions is copied into another dimension order before the loop.
    """

    widened_bits: tuple[tuple[str, int], ...]
    multiplied_bits: tuple[tuple[str, int], ...]
    num_lanes: int
    num_sublanes: int
    word_bits: int
    max_vector_tile: int
    mxu_min_rows: int
    mxu_fill_cycles: int
    mxu_window_cycles: float
    hbm_window: int
    hbm_window_share: float
    ragged_cycles: tuple[float, ...]
    ragged_tile_rows: int
    turn_cycles: float
    row_slice_cycles: tuple[float, ...]
    depthwise_macs: tuple[float, ...]
    dilated_rows: int
    min_conv_batch: int
    fast_convert_bytes: int
    keeps_matmul_layouts: bool
    keeps_collective_layouts: bool
    relayout_copies: int
    copies_conv_gradient_operands: bool
    copies_conv_operands: bool
    transposes_matmul_operands: bool
    copies_summed_stacks: bool

    @property
    def is_tiled(self) -> bool:
        """True where tensors lie in tiles, and short rows are padded."""
        return self.num_lanes > 1

    def intermediate_bits(self, dtype: str, bits: int) -> int:
        """Bits of an element of an intermediate."""
        return dict(self.widened_bits).get(dtype, bits)

    def operand_bits(self, dtype: str, bits: int) -> int:
        """Bits of an operand's element that a matmul at default precision reads."""
        return dict(self.multiplied_bits).get(dtype, bits)
