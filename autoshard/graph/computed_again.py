"""Values that are written for what cannot compute them, and computed again by all that can."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from autoshard.graph.dataflow import trace_back
from autoshard.graph.op_traits import READS_FUSED, is_elementwise
from autoshard.graph.program import Graph, Op, OpClass, OpKind


def computed_again(graph: Graph, stored: Sequence[bool]) -> frozenset[int]:
    """Element-wise results that gathers alone want written.

    All else that reads one computes it, if it is no smaller than what it is made of (the logits of
    a loss in wider elements, of which the loss looks up that of each label).

    Source: openxla/xla, `InstructionFusion::ComputeGloballyUnfusible`.

    Args:
        graph: The program.
        stored: By value, whether it has a buffer.
    """
    found = set()
    for value, is_stored in enumerate(stored):
        op = graph.maker(value)
        if not is_stored or not is_elementwise(op):
            continue
        readers = [graph.ops[index] for index in graph.consumers[value]]
        others = [reader for reader in readers if reader.op_class is not OpClass.GATHER]
        is_gathered = len(others) < len(readers)
        if is_gathered and all(reader.op_class in READS_FUSED for reader in others):
            sources = trace_back(graph, op.operands, lambda one, v: _is_fused(one, stored[v]))
            num_bytes = sum(graph.values[source].num_bytes for source in sources.frontier)
            if num_bytes <= graph.values[value].num_bytes:
                found.add(value)
    return frozenset(found)


def computes_again(op: Op, value: int, again: Collection[int]) -> bool:
    """True where an op computes one of these values, and does not read it."""
    return value in again and op.op_class is not OpClass.GATHER


def _is_fused(op: Op, is_stored: bool) -> bool:
    return op.kind is OpKind.FREE or (op.kind is OpKind.COMPUTE and not is_stored)
