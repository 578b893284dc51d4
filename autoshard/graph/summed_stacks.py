"""Stacks that a loop reads for sums over their leading dimensions, which it adds up run by run."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.graph.dataflow import trace_back
from autoshard.graph.op_traits import is_elementwise, passes_through, renames
from autoshard.graph.program import Graph, Op, OpClass, OpKind
from autoshard.graph.stacks import written_stacks

_MATRIX = 2
"""Dimensions of a sum by which the order of what is summed is chosen."""


def summed_stacks(graph: Graph) -> tuple[Op, ...]:
    """The ops with which loops read such stacks, of those that other loops write.

    XLA for GPUs lays out what is summed so that the summed dimensions are the minor ones, and what
    that is computed from element by element. A carry of a gradient comes before all that it is
    computed from, so the order of the carry decides; a vector has none. What another loop wrote is
    copied as a whole before the loop.

    Source: XLA, `GpuLayoutAssignment::PropagateReductionLayoutToOperand`; states that fade by a
        weight, where its gradient sums over each one or two of three dimensions, compiled for H100
        (CUDA plugin 0.10.2). A sum shorter than a warp that does not divide it is no exception
        here.
    """
    stacks = written_stacks(graph)
    found = (op for sum_ in _sums_of_carries(graph) for op in _read_for(graph, sum_))
    return tuple(dict.fromkeys(op for op in found if op.operands[0] in stacks))


def _sums_of_carries(graph: Graph) -> Iterator[Op]:
    """Sums over leading dimensions that loops add to carries of more than one dimension."""
    for join in graph.ops:
        if join.kind is OpKind.JOIN and join.name == "while" and len(join.operands) > 1:
            met = trace_back(graph, join.operands[1:], lambda op, _: _keeps_elements(op))
            yield from (op for v in met.frontier if _is_turned_sum(graph, op := graph.maker(v)))


def _is_turned_sum(graph: Graph, op: Op) -> bool:
    """True for a sum to two dimensions or more, longer than 1, of others that are not minor."""
    if op.op_class is not OpClass.REDUCE or op.rule is None:
        return False
    kept = {factor for dim in op.rule.results[0] for factor in dim}
    shape = graph.values[op.operands[0]].shape
    is_kept = [
        not kept.isdisjoint(dim)
        for dim, size in zip(op.rule.operands[0], shape, strict=True)
        if size > 1
    ]
    return is_kept.count(True) >= _MATRIX and is_kept != sorted(is_kept, reverse=True)


def _read_for(graph: Graph, sum_: Op) -> Iterator[Op]:
    """The ops with which its loop reads what a sum computes slices of element by element."""
    met = trace_back(graph, sum_.operands[:1], lambda op, _: _keeps_elements(op))
    for value in met.frontier:
        piece = graph.maker(value)
        if piece.name == "dynamic_slice" and passes_through(graph.maker(piece.operands[0])):
            yield graph.maker(piece.operands[0])


def _keeps_elements(op: Op) -> bool:
    is_reshape = op.name == "reduce" and op.op_class is OpClass.COPY  # over dimensions of size 1
    return is_elementwise(op) or renames(op) or is_reshape
