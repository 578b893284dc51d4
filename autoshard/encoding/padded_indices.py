"""Indices of rows that are gathered over several slices: a TPU pads their rows to whole lanes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
import numpy.typing as npt

from autoshard.costing.costing import Costing
from autoshard.graph.dataflow import trace_back
from autoshard.graph.program import Graph, OpClass, OpKind, Value
from autoshard.graph.row_lookups import takes_rows
from autoshard.identity_cache import IdentityCache
from autoshard.layouts import Layout
from autoshard.reshard import ReshardTable


@dataclass(frozen=True, slots=True)
class PaddedIndices:
    """Copies of indices, as they come from other slices.

    They are there until the last look-up has read the piece that is cut from them for it.

    Args:
        stops: By value of which indices of rows are made, when the last look-up has read them; none
            where no such copy is padded.
        lanes: To a multiple of how many elements their rows are.
    """

    costing: Costing
    stops: Mapping[int, int]
    lanes: int
    _known: IdentityCache[npt.NDArray[np.int64]] = field(default_factory=IdentityCache)

    @classmethod
    def of(cls, graph: Graph, costing: Costing) -> PaddedIndices:
        """Those of a program."""
        backend = costing.backend
        every = tuple(range(len(costing.parts.axes)))
        pads = backend.collectives.is_hierarchical and costing.num_slices(every) > 1
        return cls(costing, _looked_up(graph) if pads else {}, backend.layout.num_lanes)

    def copied_bytes(
        self, table: ReshardTable, value: Value, bits: int
    ) -> npt.NDArray[np.int64] | None:
        """int64[num_layouts, num_layouts]: bytes of copies from layouts to others.

        0 where one comes from no other slice; None of what is no index.
        """
        if value.index not in self.stops:
            return None

        def copied() -> npt.NDArray[np.int64]:
            shapes = [self.costing.parts.local_shape(after, value.shape) for after in table.layouts]
            held = [self._padded_elements(shape) * bits // 8 for shape in shapes]
            is_gathered = [
                [self.is_gathered(before, after) for after in table.layouts]
                for before in table.layouts
            ]
            return np.where(is_gathered, np.array(held, dtype=np.int64), 0)

        return self._known.get(copied, table, key=bits)

    def is_gathered(self, before: Layout, after: Layout) -> bool:
        """True where a move brings pieces from other slices."""
        if before == after:
            return False
        kept = {part for dim in after for part in dim}
        gathered = tuple(part for dim in before for part in dim if part not in kept)
        return self.costing.num_slices(gathered) > 1

    def _padded_elements(self, shape: Sequence[int]) -> int:
        """Elements of whole rows; a vector fills its lanes."""
        sizes = [size for size in shape if size > 1]
        if len(sizes) < 2:
            return prod(sizes)
        return prod(sizes[:-1]) * -(-sizes[-1] // self.lanes) * self.lanes


def _looked_up(graph: Graph) -> dict[int, int]:
    """By value of which indices of rows are made, when the last look-up has read them."""
    found: dict[int, int] = {}
    for op in graph.ops:
        if op.op_class is OpClass.GATHER and takes_rows(graph, op):
            met = trace_back(graph, op.operands[1:2], lambda made, _: made.kind is OpKind.COMPUTE)
            found.update(dict.fromkeys((*met.inner, *met.frontier), op.index + 1))
    return found
