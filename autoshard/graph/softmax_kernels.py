"""Where a softmax of a matmul's result is computed: with the matmul, or by a kernel of its own.

A matmul's kernel takes the largest score of a row, the exponentials and their sum along where it
reads both operands as they lie in memory, and rows are short. Where it computes an operand, or
brings it into another order, it writes the scores, and another kernel reads them; so it does where
rows are long. That kernel writes the exponentials too, if a matmul reads them.

Source: attention of 512 to 8,192 queries and keys in 8 and 16 heads of 64 and 128, with and without
a mask, of heads made, sliced, transposed, rotated and normalized in 30 ways, by libtpu 0.0.52 for a
v5e and a v5p.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from enum import Enum
from math import prod

from autoshard.backends import FusionPolicy
from autoshard.graph.dataflow import trace_back, trace_forward
from autoshard.graph.op_traits import is_elementwise, is_fusible
from autoshard.graph.program import PRODUCTS, Graph, Op, OpClass, OpKind
from autoshard.graph.recomputing import matmuls_reading
from autoshard.graph.row_sums import goes_along_rows
from autoshard.graph.transposed_operands import batch_leads


class SoftmaxKernel(Enum):
    """The kernel that computes a softmax of a matmul's result."""

    OF_MATMUL = "the matmul"
    OF_RESULT = "another kernel, of what the matmul makes"
    OF_SCORES = "another kernel, of what the matmul writes for the maximum"


def softmax_kernel(
    graph: Graph,
    product: Op,
    way: Sequence[int],
    written: Set[int],
    fusion: FusionPolicy,
    num_lanes: int,
) -> SoftmaxKernel | None:
    """The kernel of the softmax whose maximum reads what a product goes on to; None without one.

    Args:
        graph: The program.
        product: Matmul or convolution.
        way: Values from its result on, each made of the one before.
        written: Values that matmuls make, with what they compute of them.
        fusion: Policy.
        num_lanes: As of `LayoutPolicy`.
    """
    maxima = [
        op for op in map(graph.ops.__getitem__, graph.consumers[way[-1]]) if _is_maximum(graph, op)
    ]
    if not maxima:
        return None
    masks = _read_beside(graph, way)
    is_masked = bool(masks)
    is_read = any(graph.maker(mask).kind is not OpKind.FREE for mask in masks)
    row, is_wide = graph.values[way[-1]].shape[-1], graph.values[way[0]].bits >= 32
    is_short = row <= fusion.narrow_score_rows[is_masked]
    made = [_made_in_order(graph, product, place, written, fusion, num_lanes) for place in range(2)]
    is_in_order = None not in made and (is_short or written >= set(made))
    if is_in_order and row <= fusion.softmax_rows[3 * is_wide + is_masked + is_read]:
        return SoftmaxKernel.OF_MATMUL
    if is_short or not any(_weights(graph, op, fusion) for op in maxima):
        return SoftmaxKernel.OF_RESULT
    return SoftmaxKernel.OF_SCORES


def written_weights(
    graph: Graph,
    product_by_written: Mapping[int, int],
    with_softmax: Set[int],
    fusion: FusionPolicy,
) -> dict[int, int]:
    """Exponentials that a softmax's own kernel writes, as a matmul reads them later.

    By value, the op that takes the maximum.

    Args:
        graph: The program.
        product_by_written: Products, by what is written in their place.
        with_softmax: Products whose kernel takes the softmax.
        fusion: Policy.
    """
    return {
        weights: op.index
        for op in graph.ops
        if _is_maximum(graph, op) and product_by_written.get(op.operands[0], -1) not in with_softmax
        for weights in _weights(graph, op, fusion)
    }


def _is_maximum(graph: Graph, op: Op) -> bool:
    """True for the largest of each row, where all readers repeat it along the row."""
    return op.op_class is OpClass.REDUCE and not op.is_sum and goes_along_rows(graph, op)


def _weights(graph: Graph, maximum: Op, fusion: FusionPolicy) -> list[int]:
    """Values computed of rows and their maxima that are summed, and read by a matmul.

    Nothing where the rows are turned for it and are long, or several matmuls read them (gradients
    do): sums and matmuls compute it each.
    """
    shape = graph.values[maximum.operands[0]].shape
    size, is_long = prod(shape), shape[-1] > max(fusion.narrow_score_rows)
    rows = trace_back(graph, maximum.operands, lambda op, _: is_fusible(op))
    is_turned = any(graph.maker(value).name == "transpose" for value in rows.inner)
    found = []
    for end in trace_forward(graph, maximum.results[0], is_fusible):
        weights = end.operands[0]
        if end.op_class is not OpClass.REDUCE or not end.is_sum:
            continue
        if is_elementwise(graph.maker(weights)) and prod(graph.values[weights].shape) == size:
            ends = trace_forward(graph, weights, is_fusible)
            products = [one for one in ends if one.op_class in PRODUCTS]
            if products and not (is_turned and (is_long or len(products) > 1)):
                found.append(weights)
    return found


def _read_beside(graph: Graph, way: Sequence[int]) -> list[int]:
    """Values on the way beside the product and single numbers: masks and biases."""
    others = (v for made in way[1:] for v in graph.maker(made).operands if v not in way)
    return [value for value in others if not _is_one_number(graph, value)]


def _is_one_number(graph: Graph, value: int) -> bool:
    """True for one number everywhere."""
    ends = trace_back(graph, [value], lambda op, _: op.name in ("broadcast_in_dim", "convert"))
    return all(not graph.values[end].shape for end in ends.frontier)


def _made_in_order(
    graph: Graph,
    product: Op,
    place: int,
    written: Set[int],
    fusion: FusionPolicy,
    num_lanes: int,
) -> int | None:
    """The value that lies as a matmul reads an operand; None where it is computed or turned there.

    Matmuls, and kernels that join parts, write what they make in the order in which it is read. Of
    columns that are split into heads afterwards they do where there are no more than rows, which
    then fill the lanes, or where another matmul reads it too (a gradient), and it may be a slice of
    them then. So do the kernels that bring rows of less than all lanes into it, but for what copies
    elements or puts them between one another. All else lies in the order of its dimensions, in
    which those of the batch have to lead.
    """
    rule = product.rule
    if rule is None or place >= len(product.operands):
        return None
    is_narrow = prod(rule.factor_sizes[factor] for factor in rule.reduction) % num_lanes > 0
    value, is_turned = product.operands[place], False
    is_shared = len([*matmuls_reading(graph, value)]) > 1
    while value not in written:
        op = graph.maker(value)
        if op.name == "concatenate":
            return value
        if op.name == "reshape" and op.kind is OpKind.COMPUTE:
            before, after = (graph.values[v].shape for v in (op.operands[0], value))
            fills_lanes = is_shared or before[-1:] <= before[-2:-1]
            source, maker = op.operands[0], graph.maker(op.operands[0])
            if is_shared and maker.name == "slice":
                source = maker.operands[0]
            is_made = fills_lanes and not is_turned and source in written
            return source if (is_narrow or is_made) and len(before) <= len(after) else None
        if op.name == "transpose":
            is_turned = is_turned or _moves_batch(op)
        elif op.name != "convert":
            lies = not is_turned and not is_fusible(op) and batch_leads(rule, place)
            return value if is_narrow or lies else None
        value = op.operands[0]
    is_read_turned = is_turned and is_shared and not fusion.softmax_of_turned
    return None if is_read_turned else value


def _moves_batch(transpose: Op) -> bool:
    """True where other dimensions than the last two move."""
    assert transpose.rule is not None
    return transpose.rule.operands[0][:-2] != transpose.rule.results[0][:-2]
