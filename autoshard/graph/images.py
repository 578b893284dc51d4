"""The images that convolutions read and make."""

from __future__ import annotations

from dataclasses import dataclass

from autoshard.graph.program import Op, OpClass


@dataclass(frozen=True, slots=True)
class Image:
    """An operand or result of a convolution that is no kernel.

    Args:
        is_result: Which of both.
        place: Its position among these.
        channels: The dimension of its channels; the first one is the batch.
    """

    is_result: bool
    place: int
    channels: int


def images_of(op: Op) -> tuple[Image, ...]:
    """The images that a convolution reads and makes; the gradient of its kernel reads both."""
    if op.op_class is not OpClass.CONVOLUTION or op.rule is None:
        return ()
    sides = [(False, place, dims) for place, dims in enumerate(op.rule.operands)]
    sides += [(True, place, dims) for place, dims in enumerate(op.rule.results)]
    batch = op.rule.operands[0][0]
    kernel = {f for _, _, dims in sides if dims[0] != batch for factors in dims for f in factors}
    found = []
    for is_result, place, dims in sides:
        channels = [d for d, factors in enumerate(dims) if factors and kernel.issuperset(factors)]
        if dims[0] == batch and channels and len(dims) > 2:
            found.append(Image(is_result, place, channels[-1]))
    return tuple(found)
