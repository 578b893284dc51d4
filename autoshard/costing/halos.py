"""Edges of pieces that neighbours exchange for the gradient of a convolution's kernel.

That gradient sums over the positions of an image. Cut along one of them, a device has some of the
positions, but the windows of those at the edge reach into the pieces of its neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from autoshard.candidates.candidate import Candidate
from autoshard.graph.program import Op, OpClass
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


def halos_of(
    parts: MeshParts, op: Op, candidate: Candidate, image: Sequence[int], kernel: Sequence[int]
) -> Iterator[Halo]:
    """What a candidate sends: one message to each side, as far as windows reach.

    Args:
        parts: The mesh parts of this plan.
        op: Any op; only gradients of kernels have halos.
        candidate: A way to cut it.
        image: Shape of its first operand.
        kernel: Shape of its result.
    """
    if op.op_class is not OpClass.CONVOLUTION or op.rule is None:
        return
    local = parts.local_shape(candidate.operands[0], image)
    for place, window in _windows(op, kernel):
        cut = candidate.operands[0][place]
        for reach in ((window - 1) // 2, window // 2) if cut else ():
            if reach > 0:  # the window of an empty result has no positions
                others = prod(size for dim, size in enumerate(local) if dim != place)
                yield Halo(cut, others * reach)


def _windows(op: Op, kernel: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Summed dimensions of the image, each with the size of the window that moves along it.

    Positions of the window are the dimensions of the result that no operand has, in the order of
    the positions summed over; what is summed over last is the batch.
    """
    assert op.rule is not None
    read = {f for dims in op.rule.operands for factors in dims for f in factors}
    (made,) = op.rule.results
    moving = sorted((made[dim], dim) for dim in range(len(made)) if not read & set(made[dim]))
    places = {factors: dim for dim, factors in enumerate(op.rule.operands[0])}
    for factor, (_, dim) in zip(sorted(op.rule.reduction), moving, strict=False):
        if (factor,) in places:
            yield places[factor,], kernel[dim]
