"""Rows that do not fill their lanes: which values keep theirs, and the tiles a device works on.

A TPU works on tiles of whole lanes. Mostly the compiler lets a long dimension fill them; what is
looked up, or chosen of each row, it leaves in rows, however narrow they are, and what is computed
of a matmul's result, element by element, lies as that does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
import numpy.typing as npt

from autoshard.backends import LayoutPolicy
from autoshard.costing.local_products import product_factors
from autoshard.costing.tiles import shared_order, tiled_in
from autoshard.graph.moved_parts import MovedParts, moved_parts
from autoshard.graph.op_traits import FUSIBLE, READS_FUSED, is_elementwise
from autoshard.graph.product_writes import updates
from autoshard.graph.program import Graph, Op, OpClass, OpKind
from autoshard.layouts import Layout, MeshParts

FloatArray = npt.NDArray[np.float64]

_IN_ROWS = frozenset({OpClass.GATHER, OpClass.SORT})


def values_in_rows(graph: Graph) -> frozenset[int]:
    """Values of which the last dimension fills the lanes, whatever its size.

    What is looked up, what a sort or `top_k` makes, and what is scattered; and all that is computed
    from or for that element by element, moved or reduced, up to a product, a new state, or a
    reshape of the rows themselves. Seen in training steps of an embedding model and a mixture of
    experts (libtpu 0.0.42, v5e and v5p), and in group norms of upsampled images (0.0.52, v5e).
    """
    states = updates(graph, FUSIBLE, in_loops=True)
    found: set[int] = set()
    for op in graph.ops:
        if op.kind is not OpKind.COMPUTE or op.index in states or _reshapes_rows(graph, op):
            continue
        is_made = op.op_class in _IN_ROWS
        if is_made or (op.op_class in READS_FUSED and not found.isdisjoint(op.operands)):
            found.update(op.results)
    for op in reversed(graph.ops):
        if op.kind is not OpKind.COMPUTE:
            continue
        if op.name == "scatter":
            found.update(op.operands[2:])
        elif op.op_class not in READS_FUSED or op.index in states or _reshapes_rows(graph, op):
            continue
        elif not found.isdisjoint(op.results):
            found.update(v for v in op.operands if _is_computed(graph, v))
    return frozenset(found)


def _reshapes_rows(graph: Graph, op: Op) -> bool:
    """True where a reshape splits rows, or makes longer ones."""
    if op.name != "reshape":
        return False
    before, after = (graph.values[value].shape for value in (op.operands[0], op.results[0]))
    return before[-1:] != after[-1:]


def _is_computed(graph: Graph, value: int) -> bool:
    return graph.maker(value).kind is OpKind.COMPUTE


def lanes_of_products(graph: Graph) -> dict[int, tuple[int, ...]]:
    """Dimensions that may fill the lanes of matmuls' results and of what is computed of them.

    All but the batch dimensions of the matmul, where it has any.
    """
    found: dict[int, tuple[int, ...]] = {}
    for op in graph.ops:
        if op.kind is not OpKind.COMPUTE or len(op.results) != 1:
            continue
        (result,) = op.results
        lanes = _free_dims(op)
        if is_elementwise(op):
            shape = graph.values[result].shape
            alike = (v for v in op.operands if v in found and graph.values[v].shape == shape)
            lanes = found.get(next(alike, -1), ())
        if lanes:
            found[result] = lanes
    return found


def _free_dims(maker: Op) -> tuple[int, ...]:
    if maker.op_class is not OpClass.MATMUL or maker.rule is None:
        return ()
    factors = product_factors(maker.rule)
    free = {*factors.rows, *factors.columns}
    dims = maker.rule.results[0]
    chosen = tuple(d for d, own in enumerate(dims) if free.issuperset(own))
    return chosen if len(chosen) < len(dims) else ()


@dataclass(slots=True)
class TilePadding:
    """Bytes of tiles that a device works through, by value and layout.

    Args:
        in_rows: As of `values_in_rows`.
        moved: As of `moved_parts`.
        lanes: As of `lanes_of_products`.
    """

    graph: Graph
    parts: MeshParts
    tiling: LayoutPolicy
    in_rows: frozenset[int]
    moved: Mapping[int, MovedParts] = field(default_factory=dict)
    lanes: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    _known: dict[tuple[object, ...], float] = field(default_factory=dict)

    @classmethod
    def of(
        cls, graph: Graph, parts: MeshParts, tiling: LayoutPolicy, is_stored: Sequence[bool]
    ) -> TilePadding:
        """Of a program whose tensors a compiler tiles so."""
        if not tiling.is_tiled:
            return cls(graph, parts, tiling, frozenset())
        moved, lanes = moved_parts(graph, is_stored), lanes_of_products(graph)
        return cls(graph, parts, tiling, values_in_rows(graph), moved, lanes)

    def shared_order(self, value: int, layout: Layout) -> tuple[int, int] | None:
        """Dimensions that the rows and lanes of a moved part's tiles lie along; None of others."""
        if value not in self.moved:
            return None
        whole = self.graph.values[value]
        local = self.parts.local_shape(layout, whole.shape)
        if len(local) < 2:
            return None
        cut = tuple(-(-size // held) for size, held in zip(whole.shape, local, strict=True))
        return shared_order(self.moved[value], cut, whole.bits, self.tiling)

    def kind(self, value: int) -> MovedParts | tuple[int, ...] | None:
        """Dimensions of a value that may fill the lanes; None where any may.

        The last one of rows; those of `lanes_of_products`. For a moved part, its group: they lie
        in one order.
        """
        if not self.tiling.is_tiled or len(self.graph.values[value].shape) < 2:
            return None
        if value in self.in_rows:
            return (len(self.graph.values[value].shape) - 1,)
        if value in self.moved:
            return self.moved[value]
        return self.lanes.get(value)

    def local_bytes(self, value: int, layouts: Sequence[Layout]) -> FloatArray | None:
        """float64[num_layouts]: bytes of whole tiles on a device; None where all are filled."""
        kind = self.kind(value)
        if isinstance(kind, MovedParts):
            return np.array([self._in_shared_order(value, layout) for layout in layouts])
        return None if kind is None else self._bytes(value, kind, layouts)

    def _in_shared_order(self, value: int, layout: Layout) -> float:
        order = self.shared_order(value, layout)
        orders = None if order is None else (order,)
        whole = self.graph.values[value]
        return float(tiled_in(self.parts, self.tiling, whole, layout, orders=orders))

    def fills_lanes(self, value: int, layouts: Sequence[Layout]) -> npt.NDArray[np.bool_]:
        """bool[num_layouts]: whether a row of a value on a device is as long as lanes are."""
        shape, lanes = self.graph.values[value].shape, self.tiling.num_lanes
        return np.array([self.parts.local_shape(one, shape)[-1] >= lanes for one in layouts])

    def row_bytes(self, value: int, layouts: Sequence[Layout]) -> FloatArray | None:
        """The same, if its last dimension filled the lanes; None where nothing is padded."""
        if not self.tiling.is_tiled:
            return None
        return self._bytes(value, (len(self.graph.values[value].shape) - 1,), layouts)

    def row_share(self, value: int, layouts: Sequence[Layout]) -> FloatArray:
        """float64[num_layouts]: bytes of a piece whose rows fill their lanes, over its own."""
        whole, pieces = self.graph.values[value].num_bytes, map(self.parts.num_pieces, layouts)
        rows = self.row_bytes(value, layouts)
        return np.ones(len(layouts)) if rows is None else rows * np.array([*pieces]) / whole

    def bytes_by_row(self, value: int, layouts: Sequence[Layout]) -> FloatArray:
        """float64[num_layouts]: bytes that a device reads or writes row by row, each in lanes.

        A scalar is a row of one element; many such rows are a vector.
        """
        found = self.graph.values[value]
        local = [self.parts.local_shape(one, found.shape) or (1,) for one in layouts]
        local = [shape if shape[-1] > 1 else (prod(shape),) for shape in local]
        rows = [prod(shape[:-1]) * _up(shape[-1], self.tiling.num_lanes) for shape in local]
        return np.array(rows) * found.bits / 8

    def _bytes(self, value: int, dims: tuple[int, ...], layouts: Sequence[Layout]) -> FloatArray:
        found = self.graph.values[value]
        return np.array([self._padded(found.shape, found.bits, dims, one) for one in layouts])

    def _padded(
        self, shape: tuple[int, ...], bits: int, dims: tuple[int, ...], layout: Layout
    ) -> float:
        key = (shape, bits, dims, layout)
        known = self._known.get(key)
        if known is None:
            local = self.parts.local_shape(layout, shape)
            known = self._known[key] = _tiles(local, dims, self.tiling) * bits / 8
        return known


def _tiles(local: Sequence[int], dims: Sequence[int], tiling: LayoutPolicy) -> int:
    """Elements of whole tiles, where the best of some dimensions fills the lanes.

    Dimensions of one element are left out, and where one is left nothing is padded.
    """
    long = [place for place, size in enumerate(local) if size > 1]
    if len(long) < 2:
        return prod(local)
    best = []
    for lane in [dim for dim in dims if dim in long] or [long[-1]]:
        rest = [place for place in long if place != lane]
        row = rest[-1] if len(dims) == 1 else max(rest, key=lambda place: local[place])
        others = prod(local[place] for place in rest if place != row)
        whole = _up(local[lane], tiling.num_lanes) * _up(local[row], tiling.num_sublanes)
        best.append(whole * others)
    return min(best)


def _up(size: int, tile: int) -> int:
    return -(-size // tile) * tile
