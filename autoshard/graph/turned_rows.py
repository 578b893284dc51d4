"""Rows that are split or merged beside a batched matmul, and copied to another dimension order.

A matmul whose batch dimensions do not lead reads and writes its other dimensions as the last two:
attention over heads that are pieces of a row. What another matmul makes is written like that; what
element-wise ops make lies in rows, and a copy exchanges the dimensions.
"""

from __future__ import annotations

from autoshard.graph.dataflow import trace_back
from autoshard.graph.op_traits import is_elementwise
from autoshard.graph.program import Graph, Op, OpClass, OpKind
from autoshard.graph.transposed_operands import batch_leads


def turned_rows(graph: Graph) -> dict[int, int]:
    """By reshape, the value that is copied to another dimension order for it, or behind it.

    What element-wise ops make of a matmul is stored in rows for that.

    Source: queries, keys and values with a bias, scaled, converted, through a GELU, rotated and
        normalized, before and after the reshape, and their gradients, by libtpu 0.0.52 for a v5p.
    """
    found: dict[int, int] = {}
    for op in graph.ops:
        if op.name != "reshape" or op.kind is not OpKind.COMPUTE:
            continue
        (rows,), (pieces,) = op.operands, op.results
        if _splits_last(graph, rows, pieces):
            if _is_made_of_a_matmul(graph, rows) and _is_read_by_heads(graph, pieces):
                found[op.index] = rows
        elif _splits_last(graph, pieces, rows) and _is_merged_of_heads(graph, op):
            found[op.index] = pieces
    return found


def _splits_last(graph: Graph, rows: int, pieces: int) -> bool:
    """True where the second tensor is the first with its last dimension in two."""
    one, other = graph.values[rows].shape, graph.values[pieces].shape
    return len(other) == len(one) + 1 and one[:-1] == other[: len(one) - 1] and 1 not in other[-2:]


def _is_made_of_a_matmul(graph: Graph, value: int) -> bool:
    """True for the result of element-wise ops, one of which reads a matmul."""
    made = trace_back(graph, [value], lambda op, _: is_elementwise(op))
    return bool(made.inner) and any(_is_matmul(graph.maker(one)) for one in made.frontier)


def _is_read_by_heads(graph: Graph, value: int) -> bool:
    """True where a matmul whose batch does not lead reads a value, or one that is transposed."""
    readers = [graph.ops[index] for index in graph.consumers[value]]
    return any(_is_by_heads(reader, reader.operands.index(value)) for reader in readers) or any(
        _is_matmul(graph.ops[index])
        for reader in readers
        if reader.name == "transpose"
        for index in graph.consumers[reader.results[0]]
    )


def _is_merged_of_heads(graph: Graph, op: Op) -> bool:
    """True where element-wise ops read in rows what a batched matmul made transposed."""
    (value,) = op.operands
    maker = graph.maker(value)
    if maker.name != "transpose" or not _is_matmul(graph.maker(maker.operands[0])):
        return False
    readers = (graph.ops[index] for index in graph.consumers[op.results[0]])
    return len(graph.values[value].shape) > 3 and any(map(is_elementwise, readers))


def _is_by_heads(op: Op, place: int) -> bool:
    return _is_matmul(op) and place < 2 and op.rule is not None and not batch_leads(op.rule, place)


def _is_matmul(op: Op) -> bool:
    return op.kind is OpKind.COMPUTE and op.op_class is OpClass.MATMUL
