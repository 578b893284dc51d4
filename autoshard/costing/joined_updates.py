"""What the kernels of loops write: rows of stacks together, and what is carried apart."""

from __future__ import annotations

from dataclasses import dataclass

from autoshard.graph.buffers import Buffers
from autoshard.graph.dataflow import trace_back
from autoshard.graph.program import PRODUCTS, Graph, OpClass, OpKind


@dataclass(frozen=True, slots=True)
class LoopKernels:
    """What the kernels of loop bodies write.

    Args:
        joined: Updates in place, by op, that run in the kernel of an earlier one.
        apart: What a loop carries, by value, that is written by a kernel of its own.
    """

    joined: frozenset[int] = frozenset()
    apart: frozenset[int] = frozenset()

    @classmethod
    def of(cls, graph: Graph, buffers: Buffers) -> LoopKernels:
        """Look at the loops of a program."""
        return cls(joined_updates(graph, buffers), carried_apart(graph, buffers))


def joined_updates(graph: Graph, buffers: Buffers) -> frozenset[int]:
    """Updates in place that run in the kernel of an earlier one: both are computed from the same.

    So libtpu 0.0.42 joins what a body keeps for the backward pass: of an LSTM 13 stacks were
    written by 6 kernels, those of what is computed from the sums of its gates by two of them.
    """
    found = set()
    seen: set[tuple[int, frozenset[int]]] = set()
    for op in graph.ops:
        if op.name == "dynamic_update_slice" and op.repeat > 1:
            key = op.region, _computed_from(graph, buffers, op.operands[1])
            if key in seen:
                found.add(op.index)
            if key[1]:
                seen.add(key)
    return frozenset(found)


def carried_apart(graph: Graph, buffers: Buffers) -> frozenset[int]:
    """Element-wise results that loops carry, and write in a kernel of their own.

    That is what is computed of slices of stacks and of what the loop carries, as the gradient of an
    LSTM's state. What is computed of products and sums of the run counts with these; with rows of
    stacks, what they are computed from.
    """
    rows = [op for op in graph.ops if op.name == "dynamic_update_slice" and op.repeat > 1]
    with_rows = {value for row in rows for value in _computed_from(graph, buffers, row.operands[1])}
    return frozenset(
        value
        for value, carry in enumerate(buffers.owner)
        if carry != value
        and graph.maker(carry).kind is OpKind.JOIN
        and graph.maker(value).op_class is OpClass.ELEMENTWISE
        and buffers.is_stored[value]
        and value not in with_rows
        and not _is_of_sum(graph, buffers, value)
    )


def _is_of_sum(graph: Graph, buffers: Buffers, value: int) -> bool:
    """True where what a product or a reduction wrote is among what a value is computed from."""
    operands = graph.maker(value).operands
    made_of = {source for one in operands for source in _computed_from(graph, buffers, one)}
    made_of.add(value)
    makers = {source: graph.maker(source).op_class for source in made_of}
    return any(
        source in buffers.product_by_written or made_by in PRODUCTS or made_by is OpClass.REDUCE
        for source, made_by in makers.items()
    )


def _computed_from(graph: Graph, buffers: Buffers, row: int) -> frozenset[int]:
    """The stored tensors that a row is computed from with its update."""
    met = trace_back(graph, [row], buffers.is_fused)
    return frozenset(one for one in met.frontier if graph.maker(one).kind is not OpKind.FREE)
