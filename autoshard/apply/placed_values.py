"""The layout that a value is held to where it is made."""

from __future__ import annotations

from autoshard.candidates.candidate import Candidate
from autoshard.encoding.encoded import Decoded
from autoshard.graph.program import Graph, Op, OpClass
from autoshard.layouts import Layout


def placed_layout(graph: Graph, decoded: Decoded, value: int) -> Layout:
    """The planned layout of a value; of some sums that are scattered, the one before that.

    Asked for a sum that is cut further, the partitioner gathers the updates of a scatter instead of
    summing its partial results, the table of a look-up that is in pieces, and the whole batch of a
    product whose sum is scattered onto that batch. Asked for the sum and then for the cut, it sums,
    and compilers make a reduce-scatter of the two (seen with libtpu 0.0.42 for a v5e; a gradient of
    an embedding, experts cut over one axis whose results are summed on to the batch).
    """
    op = graph.maker(value)
    candidate = decoded.candidates.get(op.index)
    if candidate is not None and _is_held_before(op, candidate):
        return candidate.partial
    return decoded.layouts[value]


def _is_held_before(op: Op, candidate: Candidate) -> bool:
    """Whether what an op sums is held before it is scattered."""
    if not candidate.scattered or candidate.streamed is not None:
        return False
    if op.op_class in (OpClass.GATHER, OpClass.SCATTER):
        return True
    return op.op_class is OpClass.MATMUL and not candidate.reduced and _is_onto_batch(op, candidate)


def _is_onto_batch(op: Op, candidate: Candidate) -> bool:
    """Whether sums are scattered onto a factor that both operands of a product have."""
    assert op.rule is not None
    of_operands = [{factor for dim in dims for factor in dim} for dims in op.rule.operands]
    batch = set.intersection(*of_operands)
    (after,) = candidate.results
    return any(
        cut != before and not batch.isdisjoint(factors)
        for cut, before, factors in zip(after, candidate.partial, op.rule.results[0], strict=True)
    )
