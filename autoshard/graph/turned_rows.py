"""Rows that are split or merged beside a batched matmul, and copied to another dimension order.

A matmul whose batch dimensions do not lead reads and writes its other dimensions as the last two:
attention over heads that are pieces of a row. What another matmul makes is written like that; what
element-wise ops make lies in rows, and a copy exchanges the dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.graph.dataflow import unconstrained
from autoshard.graph.op_traits import is_constraint, is_elementwise, is_matmul, splits_last
from autoshard.graph.program import Graph, Op, OpKind
from autoshard.graph.transposed_operands import works_in_heads


def turned_rows(graph: Graph) -> dict[int, int]:
    """By reshape, the value that is copied to another dimension order for it, or behind it.

    What element-wise ops make of a matmul is stored in rows for that.

    Source: queries, keys and values with a bias, scaled, converted, through a GELU, rotated and
        normalized, before and after the reshape, and their gradients, by libtpu 0.0.52 for a v5p.
    """
    found: dict[int, int] = {}
    of_matmuls = _of_matmuls(graph)
    for op in graph.ops:
        if op.name != "reshape" or op.kind is not OpKind.COMPUTE:
            continue
        before, after = unconstrained(graph, op.operands[0]), op.results[0]
        is_computed = before in of_matmuls and is_elementwise(graph.maker(before))
        is_split = is_computed and _splits_last(graph, before, after)
        is_merged = _splits_last(graph, after, before) and _is_merged_of_heads(graph, before, after)
        if is_merged or (is_split and _is_read_by_heads(graph, after)):
            found[op.index] = before
    return found


def _splits_last(graph: Graph, rows: int, pieces: int) -> bool:
    """True where neither part of the last dimension has one element."""
    return splits_last(graph, rows, pieces) and 1 not in graph.values[pieces].shape[-2:]


def _of_matmuls(graph: Graph) -> set[int]:
    """Results of matmuls, and of element-wise ops that read one of these."""
    found: set[int] = set()
    for op in graph.ops:
        passes = is_elementwise(op) or is_constraint(op)
        if is_matmul(op) or (passes and not found.isdisjoint(op.operands)):
            found.update(op.results)
    return found


def _is_read_by_heads(graph: Graph, value: int) -> bool:
    """True where a matmul whose batch does not lead reads a value, or one that is transposed."""
    readers = [*_readers(graph, value)]
    return any(works_in_heads(reader, place) for reader, place in readers) or any(
        is_matmul(behind)
        for reader, _ in readers
        if reader.name == "transpose"
        for behind, _ in _readers(graph, reader.results[0])
    )


def _is_merged_of_heads(graph: Graph, pieces: int, rows: int) -> bool:
    """True where element-wise ops read in rows what a batched matmul made transposed."""
    maker = graph.maker(pieces)
    if maker.name != "transpose":
        return False
    made = unconstrained(graph, maker.operands[0])
    readers = (reader for reader, _ in _readers(graph, rows))
    is_of_heads = is_matmul(graph.maker(made)) and len(graph.values[pieces].shape) > 3
    return is_of_heads and any(map(is_elementwise, readers))


def _readers(graph: Graph, value: int) -> Iterator[tuple[Op, int]]:
    """Ops that read a value, as it is or constrained, each with the place of the operand."""
    for index in graph.consumers[value]:
        reader = graph.ops[index]
        if is_constraint(reader):
            yield from _readers(graph, reader.results[0])
        else:
            places = enumerate(reader.operands)
            yield from ((reader, place) for place, operand in places if operand == value)
