"""Slices of stacks that a TPU writes before matmuls read them."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.graph.dataflow import trace_forward
from autoshard.graph.op_traits import TRANSPARENT, is_constraint, is_fusible, is_matmul, splits_last
from autoshard.graph.program import Graph, Op
from autoshard.graph.transposed_operands import works_in_heads


def sliced_operands(graph: Graph) -> frozenset[int]:
    """Slices of stacks in loops for matmuls that work in heads.

    A matmul that multiplies a slice in rows reads it from the stack, and so does each of several
    that read one slice. A matmul whose batch dimensions do not lead (attention over pieces of
    rows), or whose result is split for such a one, multiplies in another dimension order.

    Source: layers of attention and of an MLP under `scan`, forward and with gradients, rotated
        queries or not, kept or computed again, by libtpu 0.0.52 for a v5e and a v5p.
    """
    return frozenset(
        op.results[0]
        for op in graph.ops
        if op.name == "dynamic_slice" and op.repeat > 1 and _is_written(graph, op.results[0])
    )


def _is_written(graph: Graph, piece: int) -> bool:
    return any(
        works_in_heads(op, place) or _is_split_for_heads(graph, op)
        for op, place in _matmuls(graph, piece)
    )


def _matmuls(graph: Graph, value: int) -> Iterator[tuple[Op, int]]:
    """Matmuls that read a value, as it is or transparently, each with the place of the operand."""
    todo = [value]
    while todo:
        read = todo.pop()
        for index in graph.consumers[read]:
            op = graph.ops[index]
            if is_constraint(op) or (op.name in TRANSPARENT and op.results):
                todo += op.results
            elif is_matmul(op):
                yield op, op.operands.index(read)


def _is_split_for_heads(graph: Graph, matmul: Op) -> bool:
    """True where what is computed of a result, with its last dimension in two, is read by heads."""
    return any(
        works_in_heads(reader, place)
        for split in trace_forward(graph, matmul.results[0], is_constraint)
        if split.name == "reshape" and splits_last(graph, split.operands[0], split.results[0])
        for reader in trace_forward(graph, split.results[0], _is_computed_through)
        for place in range(2)
    )


def _is_computed_through(op: Op) -> bool:
    return is_constraint(op) or is_fusible(op)
