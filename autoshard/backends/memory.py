"""Where buffers of a program lie, and how many bytes they take beside their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPolicy:
    """Buffer assignment: HBM, VMEM and the tables of the runtime.

    Args:
        fragmentation_factor: Bytes allocated for temporaries over the bytes of their live ranges.
        tight_fragmentation_factor: The same where memory is tight: the most seen.
        allocates_in_schedule_order: Temporaries are placed in the order in which they are made (a
            heap with gaps); otherwise largest first, with next to no gaps.
        combined_sum_bytes: Bytes of results up to which partial sums that nothing waits for are
            taken in one call; what they sum is held until then. 0: each by itself.
        sums_in_place: An all-reduce writes its result over its operand.
        results_apart: No temporary takes the memory of a result before that is written.
        reuses_reshaped: An element-wise kernel writes its result over an operand of another shape.
        cse_reshards: Two reshards of a value to one sharding are one copy.
        stores_image_positions: The gradient of a max pool is a window over the image and its
            positions, of which one tensor for each dimension is stored.
        stores_selected_positions: The same gradient scatters to positions that are stored.
        vmem_bytes: VMEM that holds temporaries with a near reader; 0: none.
        most_unread_bytes: Bytes that HBM moves in the longest time that a buffer waits in VMEM from
            one read to the next; beyond it is evicted.
        lookup_slowdowns: Seconds of a gather of rows, and of a scatter, in memory space assignment,
            over those in which HBM moves the rows in whole tiles.
        element_scatter_slowdown: Likewise seconds of a scatter that adds single elements to
            something, over those in which HBM moves the elements in whole tiles.
        unsorted_scatter_bytes: Bytes of a scatter's result up to which it takes rows in their
            order; beyond it they are sorted first, and take the time of HBM.
        matmul_results_in_vmem: Matmuls, collectives and gathers write to VMEM too.
        tuple_index_table_bytes: Bytes of the table that an op with several results keeps.
        tuple_index_tables_per_matmul: Tables for each matmul or convolution, on average.
        tuple_index_tables_by_argument: (bytes, tables) in rising order: tables on average for an
            argument of which a device holds fewer bytes.
    """

    fragmentation_factor: float
    tight_fragmentation_factor: float
    allocates_in_schedule_order: bool
    combined_sum_bytes: float
    sums_in_place: bool
    results_apart: bool
    reuses_reshaped: bool
    cse_reshards: bool
    stores_image_positions: bool
    stores_selected_positions: bool
    vmem_bytes: int
    most_unread_bytes: int
    lookup_slowdowns: tuple[float, float]
    element_scatter_slowdown: float
    unsorted_scatter_bytes: int
    matmul_results_in_vmem: bool
    tuple_index_table_bytes: int
    tuple_index_tables_per_matmul: float
    tuple_index_tables_by_argument: tuple[tuple[float, float], ...]

    def fragmentation(self, *, is_tight: bool) -> float:
        """Factor on the bytes of temporaries: the worst case where memory is tight."""
        return self.tight_fragmentation_factor if is_tight else self.fragmentation_factor

    def num_tuple_index_tables(self, held_bytes: int) -> float:
        """Tables, on average, for an argument of which a device holds so many bytes."""
        tables = self.tuple_index_tables_by_argument
        return next((count for limit, count in tables if held_bytes < limit), 0.0)

    def tuple_index_bytes(self, arguments: Sequence[int], num_matmuls: int) -> int:
        """Bytes of the tuple index tables of a program, by the bytes held of each argument.

        A matmul or convolution in a loop counts once.
        """
        tables = self.tuple_index_tables_per_matmul * num_matmuls
        tables += sum(self.num_tuple_index_tables(held) for held in arguments)
        return round(tables) * self.tuple_index_table_bytes
