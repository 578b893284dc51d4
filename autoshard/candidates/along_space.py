"""Convolutions and pools cut along space: the partitioner exchanges halos between neighbours."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from autoshard.candidates.candidate import Candidate
from autoshard.graph.program import Graph, Op, OpClass
from autoshard.graph.rule import Rule
from autoshard.graph.window import Window
from autoshard.layouts import Layout, MeshParts


def rule_with_space(graph: Graph, parts: MeshParts, op: Op, written: Set[Layout]) -> Rule:
    """The rule of an op; what its windows move along may be cut, if there are too few images.

    Images apart need no halos, so where they can take every device, space is left whole.

    Args:
        graph: The program.
        parts: The mesh parts of this plan.
        op: With a rule.
        written: Layouts that the user wrote; along a dimension that one of them cuts, ops may be
            cut whatever the number of images.
    """
    assert op.rule is not None
    moving = {
        op.rule.operands[0][window.image][0]: window
        for window in op.windows
        if _moves_along(op, window)
    }
    if not moving:
        return op.rule
    shape = graph.values[op.operands[0]].shape
    if shape[_batch(op)] % parts.mesh.num_devices == 0 and not any(
        _is_written(window, len(shape), written) for window in moving.values()
    ):
        return op.rule
    return replace(op.rule, permutation=op.rule.permutation - set(moving))


def exchanged_with_neighbours(
    graph: Graph,
    parts: MeshParts,
    op: Op,
    written: Set[Layout],
    candidates: tuple[Candidate, ...],
) -> tuple[Candidate, ...]:
    """The candidates that are whole along space, or cut so that halos come from the neighbours.

    Windows start in the piece that they make a part of, and reach no further than one piece. Parts
    that could cut images instead do not cut space.
    """
    image, *others = (graph.values[value].shape for value in (*op.operands, op.results[0]))
    made = others[0] if op.name == "select_and_scatter" else others[-1]
    batch = _batch(op)

    def reaches_neighbours(window: Window, candidate: Candidate) -> bool:
        cut = candidate.operands[0][window.image]
        if window.starts_between_elements:  # XLA's partitioner ends the process (jaxlib 0.10.2)
            return False
        pieces, size = parts.num_shards(cut), image[window.image]
        piece = size // pieces
        if window.kernel >= 0 and candidate.operands[1][window.kernel] == cut:
            taps = others[0][window.kernel]
            start, stop = window.summed_span(size, taps, made[window.made], pieces)
        elif not window.is_aligned(size, made[window.made], pieces):
            return False
        else:
            start, stop = window.span(made[window.made], pieces)
        return max(-start, stop - piece) <= (0 if op.name == "select_and_scatter" else piece)

    def is_offered(candidate: Candidate) -> bool:
        layout = candidate.operands[0]
        images = parts.num_shards(layout[batch])
        for window in op.windows:
            cut = layout[window.image]
            if not cut:
                continue
            if not reaches_neighbours(window, candidate):
                return False
            could_cut_images = _moves_along(op, window) and any(
                image[batch] % (images * parts.sizes[part]) == 0 for part in cut
            )
            if could_cut_images and not _is_written(window, len(image), written):
                return False
        return True

    return tuple(filter(is_offered, candidates))


def _moves_along(op: Op, window: Window) -> bool:
    """True where a window moves along a factor that the result has; it is not summed over."""
    if op.rule is None or len(op.results) != 1:
        return False
    factors = op.rule.operands[0][window.image]
    if not factors or factors[0] not in op.rule.permutation:
        return False
    return op.name != "select_and_scatter" or factors == op.rule.operands[1][window.image]


def _batch(op: Op) -> int:
    """The dimension of the images: of pools the first that no window moves along."""
    assert op.rule is not None
    moved = {window.image for window in op.windows}
    dims = op.rule.operands[0]
    others = [dim for dim in range(len(dims)) if dim not in moved]
    if op.op_class is OpClass.CONVOLUTION:
        kernel = {factor for factors in op.rule.operands[1] for factor in factors}
        others = [dim for dim in others if kernel.isdisjoint(dims[dim])] or others
    return others[0] if others else 0


def _is_written(window: Window, rank: int, written: Set[Layout]) -> bool:
    return any(len(layout) == rank and layout[window.image] for layout in written)
