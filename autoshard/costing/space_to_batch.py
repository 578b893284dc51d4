"""Convolutions of few images: the compiler cuts each row of an image and takes pieces as images.

A tile of a TPU holds eight images, one in each sublane. Of fewer images libtpu makes eight times as
many: it cuts each row into eight pieces, each with the edge of the next one that a window reaches.
Kernels of one tap reach no edge, and leave them as they are (float32[4, 4096, 256] under 1 and 2
taps for a v5e, libtpu 0.0.52).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import numpy.typing as npt

from autoshard.candidates.candidate import Candidate
from autoshard.graph.images import images_of
from autoshard.graph.program import Graph, Op
from autoshard.layouts import Layout, MeshParts

FloatArray = npt.NDArray[np.float64]

COPIES = 3
"""How often an image counts as copied for one convolution that reads or makes it.

Into pieces and back, with their edges, and what is no more computed in one between them. Training
steps with 4 images took longer than half of what they took with 8, by 2.4 to 3 copies of each image
on a v5e and by 3.8 to 4 on a v5p (libtpu 0.0.42): two convolutions around a group norm, four with
strides of 1 and 2 and a transposed one, a U-Net.
"""

_LEAST_WIDTH = 2  # of a piece of a row: rows of 16 were cut into 8, rows of 12 not


def copied_elements(
    graph: Graph,
    parts: MeshParts,
    op: Op,
    candidates: Sequence[Candidate],
    least: int,
    lanes: int,
) -> FloatArray:
    """float64[num_candidates]: elements of the images that a device copies for a convolution.

    Args:
        graph: The program.
        parts: The mesh parts of this plan.
        op: Any op.
        candidates: Of the op.
        least: Images on a device of which none is cut, as of `least_images`.
        lanes: Elements in one row of a tile.
    """
    found = np.zeros(len(candidates))
    for image in images_of(op) if least > 1 and _reaches_edges(op) else ():
        shape = graph.values[(op.results if image.is_result else op.operands)[image.place]].shape
        known: dict[Layout, float] = {}
        for index, candidate in enumerate(candidates):
            layout = candidate.side(is_result=image.is_result)[image.place]
            if layout not in known:
                known[layout] = _in_pieces(
                    parts.local_shape(layout, shape), image.channels, least, lanes
                )
            found[index] += known[layout]
    return COPIES * found


def _reaches_edges(op: Op) -> bool:
    return not op.windows or any(window.size > 1 for window in op.windows)


def _in_pieces(local: Sequence[int], channels: int, least: int, lanes: int) -> float:
    """Elements of an image of a device once its rows are cut; 0 where they are not."""
    batch, *rows, width = (size for dim, size in enumerate(local) if dim != channels)
    if batch >= least or width < _LEAST_WIDTH * least:
        return 0.0
    piece = -(-width // least) + 1
    return float(prod(rows) * batch * least * piece * (-(-local[channels] // lanes) * lanes))
