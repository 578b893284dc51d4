"""Rows that do not fill their lanes: which values keep theirs, and the tiles a device works on.

A TPU works on tiles of whole lanes. Mostly the compiler lets a long dimension fill them; what is
looked up, or chosen of each row, it leaves in rows, however narrow they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
import numpy.typing as npt

from autoshard.backends import LayoutPolicy
from autoshard.graph.op_traits import FUSIBLE, READS_FUSED
from autoshard.graph.product_writes import updates
from autoshard.graph.program import Graph, OpClass, OpKind
from autoshard.layouts import Layout, MeshParts

FloatArray = npt.NDArray[np.float64]

_IN_ROWS = frozenset({OpClass.GATHER, OpClass.SORT})


def values_in_rows(graph: Graph) -> frozenset[int]:
    """Values of which the last dimension fills the lanes, whatever its size.

    What is looked up, what a sort or `top_k` makes, and what is scattered; and all that is computed
    from or for that element by element, moved or reduced, up to a product or a new state. Seen in
    training steps of an embedding model and a mixture of experts (libtpu 0.0.42, v5e and v5p).
    """
    states = updates(graph, FUSIBLE, in_loops=True)
    found: set[int] = set()
    for op in graph.ops:
        if op.kind is not OpKind.COMPUTE or op.index in states:
            continue
        is_made = op.op_class in _IN_ROWS
        if is_made or (op.op_class in READS_FUSED and not found.isdisjoint(op.operands)):
            found.update(op.results)
    for op in reversed(graph.ops):
        if op.kind is not OpKind.COMPUTE:
            continue
        if op.name == "scatter":
            found.update(op.operands[2:])
        elif op.op_class not in READS_FUSED or op.index in states:
            continue
        elif not found.isdisjoint(op.results):
            found.update(v for v in op.operands if _is_computed(graph, v))
    return frozenset(found)


def _is_computed(graph: Graph, value: int) -> bool:
    return graph.maker(value).kind is OpKind.COMPUTE


@dataclass(slots=True)
class RowTiles:
    """Bytes of tiles that a device works through, by value and layout.

    Args:
        graph: The program.
        parts: The mesh parts of this plan.
        tiling: Of the compiler.
        in_rows: As of `values_in_rows`.
    """

    graph: Graph
    parts: MeshParts
    tiling: LayoutPolicy
    in_rows: frozenset[int]
    _known: dict[tuple[object, ...], float] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: Graph, parts: MeshParts, tiling: LayoutPolicy) -> RowTiles:
        """Of a program whose tensors a compiler tiles so."""
        return cls(graph, parts, tiling, values_in_rows(graph) if tiling.is_tiled else frozenset())

    def are_padded(self, value: int) -> bool:
        """True where the last dimension of a value fills the lanes, whatever its size."""
        return value in self.in_rows and len(self.graph.values[value].shape) > 1

    def local_bytes(self, value: int, layouts: Sequence[Layout]) -> FloatArray | None:
        """float64[num_layouts]: bytes of whole tiles on a device; None where they are all filled.

        Args:
            value: That lies in them.
            layouts: How it may be cut.
        """
        return self.row_bytes(value, layouts) if self.are_padded(value) else None

    def row_bytes(self, value: int, layouts: Sequence[Layout]) -> FloatArray | None:
        """The same, if its last dimension filled the lanes; None where nothing is padded."""
        if not self.tiling.is_tiled:
            return None
        found = self.graph.values[value]
        return np.array([self._padded(found.shape, found.bits, one) for one in layouts])

    def bytes_by_row(self, value: int, layouts: Sequence[Layout]) -> FloatArray:
        """float64[num_layouts]: bytes that a device reads or writes row by row, each in lanes.

        A scalar is a row of one element.
        """
        found = self.graph.values[value]
        local = [self.parts.local_shape(one, found.shape) or (1,) for one in layouts]
        rows = [prod(shape[:-1]) * _up(shape[-1], self.tiling.num_lanes) for shape in local]
        return np.array(rows) * found.bits / 8

    def _padded(self, shape: tuple[int, ...], bits: int, layout: Layout) -> float:
        key = (shape, bits, layout)
        known = self._known.get(key)
        if known is None:
            local = self.parts.local_shape(layout, shape)
            known = self._known[key] = _tiles(local, self.tiling) * bits / 8
        return known


def _tiles(local: Sequence[int], tiling: LayoutPolicy) -> int:
    """Elements of whole tiles, where the last dimension fills the lanes.

    Dimensions of one element are left out, and where one is left nothing is padded.
    """
    long = [size for size in local if size > 1]
    if len(long) < 2:
        return prod(local)
    *others, row, lane = long
    return _up(lane, tiling.num_lanes) * _up(row, tiling.num_sublanes) * prod(others)


def _up(size: int, tile: int) -> int:
    return -(-size // tile) * tile
