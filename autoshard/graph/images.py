"""The images that convolutions read and make, and what is computed from them in their layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autoshard.graph.dataflow import spread
from autoshard.graph.program import Graph, Op, OpClass, OpKind

_POOLS = frozenset({"reduce_window", "select_and_scatter"})


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


def image_channels(graph: Graph) -> Mapping[int, int]:
    """By value in the layout of images, the dimension of its channels.

    So are the images of convolutions, and what element-wise ops and pools compute from them or make
    them of; arguments are not.
    """
    found: dict[int, int] = {}
    for op in graph.ops:
        for image in images_of(op):
            found[(op.results if image.is_result else op.operands)[image.place]] = image.channels

    def passes(op: Op) -> bool:
        is_by_element = op.kind is OpKind.CONSTRAINT or op.op_class is OpClass.ELEMENTWISE
        return is_by_element or op.name in _POOLS

    def reaches(op: Op, value: int, other: int) -> bool:
        before, after = graph.values[value].shape, graph.values[other].shape
        return before == after or (op.name in _POOLS and len(before) == len(after))

    beside = spread(graph, found, passes, reaches)
    found = {**{value: found[start] for value, start in beside.items()}, **found}
    return {v: dim for v, dim in found.items() if graph.maker(v).kind is not OpKind.ARGUMENT}
