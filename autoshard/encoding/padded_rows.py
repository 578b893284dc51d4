"""What look-ups and reshapes hold where rows have to lie in whole lanes: copies of their rows."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import numpy.typing as npt

from autoshard.candidates.candidate import Candidate
from autoshard.graph.program import Graph, Op, OpClass, OpKind
from autoshard.graph.row_lookups import takes_rows
from autoshard.layouts import Layout, MeshParts


def padded_row_bytes(
    graph: Graph, parts: MeshParts, op: Op, candidates: Sequence[Candidate], lanes: int
) -> npt.NDArray[np.int64] | None:
    """Bytes per device of the padded copies that an op makes while it runs.

    A gather or a scatter of whole rows wants them one after the other, and so does a reshape that
    merges the dimensions before them. Rows that do not fill their lanes lie otherwise before.

    Args:
        graph: The program.
        parts: The mesh.
        op: Any op.
        candidates: How it may be cut.
        lanes: Elements in one tile of a row; 1 where rows lie without gaps.

    Returns:
        int64[num_candidates], 0 where rows fill their lanes; None for an op that takes no rows.
    """
    if lanes == 1 or not (takes_rows(graph, op) or _merges_rows(graph, op)):
        return None
    sides = [(value, False, place) for place, value in enumerate(op.operands)]
    if op.op_class is OpClass.SCATTER:  # its result lies where what it adds to lay
        sides = sides[1:]
    if op.name != "reshape":  # of which the result is the copy
        sides += [(value, True, place) for place, value in enumerate(op.results)]
    width = graph.values[op.results[0]].shape[-1]
    held = np.zeros(len(candidates), dtype=np.int64)
    for value, is_result, place in sides:
        found = graph.values[value]
        if len(found.shape) < 2 or found.shape[-1] != width:  # indices
            continue
        for index, candidate in enumerate(candidates):
            layout = candidate.side(is_result=is_result)[place]
            rows, row = _local_rows(found.shape, layout, parts)
            if row % lanes:
                held[index] += rows * -(-row // lanes) * lanes * found.bits // 8
    return held if held.any() else None


def _merges_rows(graph: Graph, op: Op) -> bool:
    """Whether a reshape makes fewer dimensions of those before the last one."""
    if op.name != "reshape" or op.kind is not OpKind.COMPUTE:
        return False
    before, after = (graph.values[value].shape for value in (op.operands[0], op.results[0]))
    if min(len(before), len(after)) < 2 or before[-1] != after[-1]:
        return False
    return sum(size > 1 for size in before) > sum(size > 1 for size in after)


def _local_rows(shape: tuple[int, ...], layout: Layout, parts: MeshParts) -> tuple[int, int]:
    """How many rows a device has, and of how many elements."""
    local = [-(-size // parts.num_shards(dim)) for size, dim in zip(shape, layout, strict=True)]
    return prod(local[:-1]), local[-1]
