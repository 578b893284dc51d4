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

    A transpose that alone reads such a sum is held in its place. Compilers compute it with the
    product unless a constraint stands between; then weights and their states are copied into the
    order of its result for an update (12 copies in a step of two layers of experts for a v5e).
    """
    op = graph.maker(value)
    held = _turned_sum(graph, decoded, op) or _held_before(decoded, op)
    return decoded.layouts[value] if held is None else held


def turns_held_sum(graph: Graph, decoded: Decoded, op: Op) -> bool:
    """True of a transpose that is held in the place of the sum that it alone reads."""
    return _turned_sum(graph, decoded, op) is not None


def is_held_turned(graph: Graph, decoded: Decoded, value: int) -> bool:
    """True of a sum in whose place its transpose is held."""
    readers = (graph.ops[index] for index in graph.consumers[value])
    return any(turns_held_sum(graph, decoded, reader) for reader in readers)


def _turned_sum(graph: Graph, decoded: Decoded, op: Op) -> Layout | None:
    """The layout of a transpose that alone reads a held sum, before that is scattered."""
    if op.name != "transpose" or op.rule is None or op.index not in decoded.candidates:
        return None
    (value,) = op.operands
    product = graph.maker(value)
    is_read_as_made = decoded.candidates[op.index].operands[0] == decoded.layouts[value]
    is_alone = len(graph.consumers[value]) == 1 and product.region == op.region
    held = _held_before(decoded, product)
    if held is None or product.op_class is not OpClass.MATMUL:
        return None
    if not (is_read_as_made and is_alone):
        return None
    (read,), (made,) = op.rule.operands, op.rule.results
    return tuple(held[read.index(factors)] for factors in made)


def _held_before(decoded: Decoded, op: Op) -> Layout | None:
    """The layout of what an op sums before it is scattered; None where it is not held so."""
    candidate = decoded.candidates.get(op.index)
    if candidate is None or not _is_held_before(op, candidate):
        return None
    return candidate.partial


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
