"""Ops that a compiler computes in one kernel, and results that it therefore never stores."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionPolicy:
    """Fusion beyond element-wise ops with one another and with reductions.

    Args:
        materialized_ops: Element-wise ops whose result is stored where several ops read it; others
            are recomputed in each reader.
        materialized_max_bits: Width of an element up to which these are stored; wider results are
            recomputed, unless a reduction reads them, and another kernel does.
        fuses_into_matmuls: A matmul computes its element-wise operands, and the chain of
            single-reader element-wise ops behind it.
        softmax_rows: Elements of the longest rows of which a matmul computes the largest, the
            exponentials and their sum: of its result alone, masked by what is computed of
            constants, and masked by what is read from memory; then the same of results of 32 bits.
            0: none.
        softmax_of_turned: So it is too where an operand's heads were brought before its rows and a
            gradient reads it.
        narrow_score_rows: Likewise of the longest rows whose softmax another kernel computes of the
            matmul's result as it is; of longer ones the matmul writes what that reads.
        narrows_matmuls: A matmul writes what single-reader element-wise ops behind it make
            narrower.
        recomputed_ops: Vector operations an element that two matmuls to 128 columns each compute
            of two tensors in bfloat16, before a kernel of its own stores what they read.
        quantized_bits: Bits of the widest elements that computed ones are stored in once they are
            converted, where matmuls would compute them; 0: none.
        op_costs: (element-wise op, operations) of those that take more than one.
        matmuls_read_single_source: A matmul computes operands made of one tensor of no wider
            elements, and constants.
        min_concatenated_part: A matmul that does not contract the concatenated dimension reads the
            parts of a concatenation whose sizes are multiples of so many elements; 0: never.
        fuses_into_gathers: A gather of fewer elements than its operand has computes those it takes.
        fuses_gathers: Element-wise ops, reductions and scatters look up what they read, each again;
            what a matmul or a normalization reads is stored.
        fuses_into_scatters: A scatter computes its updates and its indices.
        kernels_per_window: Kernels of the loop over the windows of a scatter or gather, where its
            indices move them along a dimension; 0: one kernel for all windows.
        fuses_into_overlapping_windows: A reduce-window whose windows overlap computes its operand,
            unless each is as long as that (a running sum); those that do not overlap always do.
        fills_zeros_early: The zeros that a scatter adds to, or a loop starts with, are written
            before it runs, those of one shape together.
        scatters_into_addends: A scatter into zeros whose result is added to a tensor becomes a
            scatter into that tensor.
        materializes_scatter_sums: The sum of a scatter into zeros and another tensor is stored.
        materializes_moved_elements: What is padded, concatenated, reversed or sliced with a stride
            is stored before; padding between elements, and a stride along a dimension of a tile,
            are kernels of their own.
        max_positions: Positions at which a kernel computes a value that it does not store, where
            slices, pads and concatenations read it at several; of a pad or a concatenation one.
            0: no limit.
        stores_shared_slices: What several ops read is stored if one of them takes a slice of it.
        stores_sliced_operands: In a loop, a slice of a stack for a matmul that works in heads is a
            kernel of its own.
        sinks_into_loops: A loop makes in each run all that is made of constants and positions; else
            only a constant that no called function makes.
        one_hot_scatters: A scatter of one element a row becomes a comparison of positions, which is
            element-wise.
        strength_reduces_dots: A matmul of one row, one column or one term becomes a multiplication
            and a reduction, in the width of its operands.
        normalizes_at_once: A softmax or a normalization is one kernel with its sums of rows.
        stores_masked_groups: A ragged matmul stores its rows once for each group, those of other
            groups masked, and multiplies them with the matrices of all groups.
        split_k: Of GPUs that compute a long sum of a matmul in parts: multiprocessors, and the
            compiler's cost of an operation, of a byte that the matmul moves, of a byte that the sum
            of the parts moves, and of the start of that sum; empty: they never do.
        fuses_stack_updates: The rows that a loop writes to several stacks are one kernel, if they
            are computed from the same values.
    """

    materialized_ops: frozenset[str]
    materialized_max_bits: int
    fuses_into_matmuls: bool
    softmax_rows: tuple[int, ...]
    softmax_of_turned: bool
    narrow_score_rows: tuple[int, ...]
    narrows_matmuls: bool
    recomputed_ops: int
    quantized_bits: int
    op_costs: tuple[tuple[str, float], ...]
    matmuls_read_single_source: bool
    min_concatenated_part: int
    fuses_into_gathers: bool
    fuses_gathers: bool
    fuses_into_scatters: bool
    kernels_per_window: int
    fuses_into_overlapping_windows: bool
    fills_zeros_early: bool
    scatters_into_addends: bool
    materializes_scatter_sums: bool
    materializes_moved_elements: bool
    max_positions: int
    stores_shared_slices: bool
    stores_sliced_operands: bool
    sinks_into_loops: bool
    one_hot_scatters: bool
    strength_reduces_dots: bool
    normalizes_at_once: bool
    stores_masked_groups: bool
    split_k: tuple[float, ...]
    fuses_stack_updates: bool
