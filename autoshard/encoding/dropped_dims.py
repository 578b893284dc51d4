"""Dimensions of one element on a device, which a TPU drops: products write their own results then.

What follows such a product is computed apart from it, as a reshape stands between the two.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from autoshard.candidates.candidate import Candidate
from autoshard.graph.buffers import Buffers
from autoshard.graph.program import Graph
from autoshard.layouts import MeshParts


def own_bits(graph: Graph, buffers: Buffers) -> dict[int, int]:
    """By value that is written in the place of a product, bits of an element that this makes.

    Only those that take more.
    """
    found = {}
    for product, after in buffers.computed_with.items():
        (made,) = graph.ops[product].results
        if made in buffers.unless_summed or len(after) != 1:
            continue
        (last,) = graph.ops[after[0]].results
        if graph.values[made].bits < graph.values[last].bits:
            found[last] = graph.values[made].bits
    return found


def drops_dimension(
    shape: Sequence[int], parts: MeshParts, candidates: Sequence[Candidate], place: int
) -> npt.NDArray[np.bool_]:
    """bool[num_candidates]: whether a device has one element along a dimension of a result.

    Args:
        shape: Of the result.
        parts: The mesh.
        candidates: How the op may be cut.
        place: Of the result among those of the op.
    """
    local = (parts.local_shape(candidate.results[place], shape) for candidate in candidates)
    return np.array([any(size <= 1 for size in sizes) for sizes in local])
