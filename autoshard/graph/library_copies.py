"""Copies of kernels and images that a library of convolutions takes in an order of its own.

cuDNN reads a kernel with the output features first and the input features last, and an image that
is padded as much before as behind. A copy that is neither is made for the first convolution that
reads it, and kept until the last one: that of the backward pass.

Source: XLA's GPU layout assignment and `ConvPaddingLegalization`; four residual blocks for an H100
(CUDA plugin 0.10.2).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from autoshard.graph.dataflow import source_of
from autoshard.graph.op_traits import is_constraint
from autoshard.graph.program import Graph, Op, OpClass, OpKind


@dataclass(frozen=True, slots=True)
class LibraryCopy:
    """A copy of an operand.

    Args:
        op: Index of the first convolution that reads it.
        place: Of the operand.
        last: Index of the last one.
        growth: Elements of the copy over those of the operand.
    """

    op: int
    place: int
    last: int
    growth: float = 1.0


def library_copies(graph: Graph) -> Iterator[LibraryCopy]:
    """All copies of a program, each once."""
    convolutions = [op for op in graph.ops if op.op_class is OpClass.CONVOLUTION and op.windows]
    kernels: dict[int, list[Op]] = {}
    for op in convolutions:
        if not is_kernel_gradient(op):
            kernels.setdefault(_kernel(graph, op.operands[1]), []).append(op)
    for readers in kernels.values():
        if _is_reordered(readers[0]):
            yield LibraryCopy(readers[0].index, 1, readers[-1].index)
    for op in convolutions:
        growth = _padded(graph, op)
        if growth > 1 and not is_kernel_gradient(op):
            image = op.operands[0]
            again = [one.index for one in convolutions if one.operands[0] == image]
            yield LibraryCopy(op.index, 0, max(again), growth)


def is_read_reversed(graph: Graph, op: Op) -> bool:
    """True for a kernel that only convolutions read, which reverse it themselves."""
    if op.name != "reverse" or op.kind is not OpKind.COMPUTE:
        return False
    readers = [graph.ops[index] for index in graph.consumers[op.results[0]]]
    return all(one.op_class is OpClass.CONVOLUTION for one in readers)


def is_kernel_gradient(op: Op) -> bool:
    """True for the gradient of a kernel: it sums over the images."""
    assert op.rule is not None
    return {*op.rule.operands[0][0]} <= op.rule.reduction


def _kernel(graph: Graph, value: int) -> int:
    """The value of which a kernel is a reversed one."""
    return source_of(graph, value, lambda op, _: op.name == "reverse" or is_constraint(op))


def _is_reordered(op: Op) -> bool:
    """True where a kernel is not in the order: output features, space, input features."""
    assert op.rule is not None
    num_dims = len(op.rule.operands[1])
    space = sorted(one.kernel for one in op.windows)
    summed = {*op.rule.operands[1][-1]} & op.rule.reduction
    return space != list(range(1, num_dims - 1)) or not summed


def _padded(graph: Graph, op: Op) -> float:
    """Elements of the padded image over those of the image; 1 where all sides have as much."""
    shape, made = graph.values[op.operands[0]].shape, graph.values[op.results[0]].shape
    sizes, is_even = [], True
    for one in op.windows:
        taps = (one.size - 1) * one.dilation + 1
        high = one.stride * (made[one.made] - 1) + taps - one.low - shape[one.image]
        if not shape[one.image] or one.base_dilation > 1 or one.low < 0 or high < 0:
            return 1.0
        is_even &= high <= one.low < high + one.stride  # a window may leave the last ones out
        sizes.append((shape[one.image] + one.low + high) / shape[one.image])
    return 1.0 if is_even else prod(sizes)
