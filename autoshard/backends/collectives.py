"""Collectives that the partitioner and the compiler make of a sharded op or a reshard."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectivePolicy:
    """Lowering of reductions over devices, gathers and exchanges.

    Args:
        unpartitioned_ops: Ops that every device runs whole, whatever their sharding rule allows.
        gathers_grouped_convolutions: A convolution whose groups have several input features each is
            gathered and run whole, however it is sharded.
        merges_all_gathers: All-gathers of one value that the partitioner makes for several matmuls
            are one; otherwise only those near in the schedule (ScheduleAwareCollectiveOpsCSE).
        convert_motion: An operand that all readers take in narrower elements is converted before it
            is moved (ConvertMover), through ops that only rearrange.
        far_convert_motion: So is what readers slice first, and what a loop reads unchanged.
        all_reduce_per_dimension: A partial sum over several sharded dimensions takes an all-reduce
            for each; otherwise one for all.
        loop_all_reduce_motion: The all-reduce of a partial sum that a loop accumulates moves behind
            the loop (WhileLoopAllReduceCodeMotion).
        reassociates_all_reduces: Partial sums that are added are reduced once, after the addition
            (AllReduceReassociate).
        is_hierarchical: A collective over several slices becomes one inside each and one between
            them; elements are not narrowed before they leave a slice.
        reduce_scatter_along_lines: A reduce-scatter needs a group along one physical dimension, or
            two of which one has two devices; other groups take an all-reduce and a slice.
        reduce_scatter_whole_tiles: A reduce-scatter needs a matrix, one scattered dimension and
            pieces of whole tiles; other sums take an all-reduce and a slice.
        transposes_all_gathers: An all-gather puts its dimension outermost, and a copy restores the
            order.
        copies_all_to_alls: A copy brings the pieces of an all-to-all into order.
        gather_by_sum_min_devices: Devices of a slice from which an all-gather over all of it runs
            as an all-reduce of zero-padded pieces.
        gather_by_sum_max_bytes: Bytes of its result up to which it does; 0: never.
        windows_reduce_scatters: A matmul whose sum is scattered becomes a loop of partial matmuls
            and permutations (windowed einsum), if it is long enough. Plans are compiled without;
            matmuls in steps whose sums go round are priced as if they hid nothing.
        unwindowed_options: (option, setting): with them the compiler makes no windowed einsums.
    """

    unpartitioned_ops: frozenset[str]
    gathers_grouped_convolutions: bool
    merges_all_gathers: bool
    convert_motion: bool
    far_convert_motion: bool
    all_reduce_per_dimension: bool
    loop_all_reduce_motion: bool
    reassociates_all_reduces: bool
    is_hierarchical: bool
    reduce_scatter_along_lines: bool
    reduce_scatter_whole_tiles: bool
    transposes_all_gathers: bool
    copies_all_to_alls: bool
    gather_by_sum_min_devices: int
    gather_by_sum_max_bytes: float
    windows_reduce_scatters: bool
    unwindowed_options: tuple[tuple[str, str], ...]

    def gather_by_sum_bytes(self, group_size: int, slice_size: int) -> float:
        """Bytes of the result up to which an all-gather runs as an all-reduce; 0: none does.

        Args:
            group_size: Devices of the group.
            slice_size: Devices of the slice.
        """
        if group_size < max(self.gather_by_sum_min_devices, slice_size):
            return 0.0
        return self.gather_by_sum_max_bytes
