"""Edges of pieces that neighbours exchange for convolutions and pools that are cut along space."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from autoshard.candidates.candidate import Candidate
from autoshard.graph.program import Graph, Op
from autoshard.layouts import MeshParts, Parts


@dataclass(frozen=True, slots=True)
class Halo:
    """What is sent to one neighbour.

    Args:
        parts: The mesh parts along which neighbours lie.
        num_elements: Of the image on one device.
    """

    parts: Parts
    num_elements: int


def halos_of(graph: Graph, parts: MeshParts, op: Op, candidate: Candidate) -> Iterator[Halo]:
    """The messages of a candidate: one to each side that windows reach to.

    Dimensions are exchanged one after another, each with the halos of those before.
    """
    local = list(_local_image(graph, parts, op, candidate))
    for dim, cut, (start, stop) in _spans(graph, parts, op, candidate):
        others = prod(size for other, size in enumerate(local) if other != dim)
        for rows in (-start, stop - local[dim]):
            if rows > 0:
                yield Halo(cut, others * rows)
        local[dim] = stop - start


def padded_elements(graph: Graph, parts: MeshParts, op: Op, candidate: Candidate) -> int:
    """Elements of a device's piece of the image with its halos; 0 where there are none."""
    local = list(_local_image(graph, parts, op, candidate))
    has_halos = False
    for dim, _, (start, stop) in _spans(graph, parts, op, candidate):
        has_halos |= start < 0 or stop > local[dim]
        local[dim] = stop - start
    return prod(local) if has_halos else 0


def _local_image(graph: Graph, parts: MeshParts, op: Op, candidate: Candidate) -> tuple[int, ...]:
    return parts.local_shape(candidate.operands[0], graph.values[op.operands[0]].shape)


def _spans(
    graph: Graph, parts: MeshParts, op: Op, candidate: Candidate
) -> Iterator[tuple[int, Parts, tuple[int, int]]]:
    """Cut dimensions of the image, with what a piece of the result is made of."""
    made_in = candidate.partial or candidate.results[0]
    for window in op.windows if op.name != "select_and_scatter" else ():
        cut = candidate.operands[0][window.image]
        if not cut:
            continue
        pieces = parts.num_shards(cut)
        image, *kernel = (graph.values[value].shape for value in op.operands)
        made = graph.values[op.results[0]].shape[window.made]
        if made_in[window.made] == cut:
            yield window.image, cut, window.span(made, pieces)
        elif window.kernel >= 0 and candidate.operands[1][window.kernel] == cut:
            sizes = image[window.image], kernel[0][window.kernel]
            yield window.image, cut, window.summed_span(*sizes, made, pieces)
