"""Reductions of rows that one kernel takes along the rows again: a softmax, a normalization."""

from __future__ import annotations

from math import prod

from autoshard.graph.op_traits import is_widening
from autoshard.graph.program import Graph, Op, OpClass, OpKind

_PASSES_ON = frozenset({OpClass.ELEMENTWISE, OpClass.COPY})


def goes_along_rows(graph: Graph, op: Op) -> bool:
    """True for a reduction of rows that all readers repeat along the rows, element by element.

    They may compute with constants before. One of widened elements is taken before they are
    widened, so that its readers do not meet it.
    """
    shape = graph.values[op.operands[0]].shape
    if op.op_class is not OpClass.REDUCE or len(op.operands) > 2 or not shape:
        return False
    if not op.is_sum and is_widening(graph, op.operands[0]):
        return False
    if graph.values[op.results[0]].shape != shape[:-1]:
        return False
    todo = [op.results[0]]
    while todo:
        value = todo.pop()
        for index in graph.consumers[value]:
            reader = graph.ops[index]
            if reader.name == "broadcast_in_dim" and _shape(graph, reader) == shape:
                continue
            if not _passes_on(graph, reader, value):
                return False
            todo.append(reader.results[0])
    return True


def is_taken_along_rows(graph: Graph, value: int, longest_row: int) -> bool:
    """True where such a reduction reads a value, of rows of at most so many elements."""
    readers = (graph.ops[index] for index in graph.consumers[value])
    shape = graph.values[value].shape
    return (
        bool(shape)
        and shape[-1] <= longest_row
        and any(goes_along_rows(graph, reader) for reader in readers)
    )


def _passes_on(graph: Graph, op: Op, value: int) -> bool:
    """True where an op computes something with constants for each element of a value."""
    if op.kind is not OpKind.COMPUTE or op.op_class not in _PASSES_ON or len(op.results) != 1:
        return False
    others = (graph.maker(other) for other in op.operands if other != value)
    is_same = prod(_shape(graph, op)) == prod(graph.values[value].shape)
    return is_same and all(other.op_class is OpClass.NOTHING for other in others)


def _shape(graph: Graph, op: Op) -> tuple[int, ...]:
    return graph.values[op.results[0]].shape if op.results else ()
