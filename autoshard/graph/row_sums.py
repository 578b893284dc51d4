"""Reductions of rows that one kernel takes along the rows again: a softmax, a normalization."""

from __future__ import annotations

from math import prod

from autoshard.graph.dataflow import trace_forward
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

    def repeats(reader: Op) -> bool:
        return reader.name == "broadcast_in_dim" and _shape(graph, reader) == shape

    def is_on_the_way(reader: Op) -> bool:
        return not repeats(reader) and _computes_with_constants(graph, reader)

    return all(map(repeats, trace_forward(graph, op.results[0], is_on_the_way)))


def _computes_with_constants(graph: Graph, op: Op) -> bool:
    """True where an op makes something of each element of one value and of constants."""
    if op.kind is not OpKind.COMPUTE or op.op_class not in _PASSES_ON or len(op.results) != 1:
        return False
    made_of = {v for v in op.operands if graph.maker(v).op_class is not OpClass.NOTHING}
    num_elements = prod(_shape(graph, op))
    return len(made_of) == 1 and num_elements == prod(graph.values[made_of.pop()].shape)


def _shape(graph: Graph, op: Op) -> tuple[int, ...]:
    return graph.values[op.results[0]].shape if op.results else ()
