"""When buffers are read, through the ops that are fused."""

from __future__ import annotations

from autoshard.graph.buffers import Buffers
from autoshard.graph.computed_again import computes_again
from autoshard.graph.program import Graph, OpKind


def buffers_behind(graph: Graph, buffers: Buffers) -> tuple[frozenset[int], ...]:
    """Per value, its buffer; of one that is computed with its reader, the buffers it is made of."""
    found: list[frozenset[int]] = [frozenset()] * len(graph.values)
    for op in graph.ops:
        for value in op.results:
            if buffers.is_fused(op, value):
                behind = {found[operand] for operand in op.operands}
                found[value] = behind.pop() if len(behind) == 1 else frozenset().union(*behind)
            else:
                found[value] = frozenset({buffers.owner[value]})
    return tuple(found)


def buffer_reads(graph: Graph, buffers: Buffers) -> tuple[list[set[int]], list[bool]]:
    """Per value, when its buffer is read; and whether it ends as a result, or goes round a loop.

    What a fused op reads is read when the values that it is fused into are made: with a product,
    when that runs. What updates read counts with what ends as a result.
    """
    products = buffers.product_by_written
    with_product = {v: products[end] for v, end in buffers.written.items() if end in products}
    reads: list[set[int]] = [set() for _ in graph.values]
    computed: dict[int, set[int]] = {value: set() for value in buffers.again}  # by readers
    ends = [False] * len(graph.values)
    for op in reversed(graph.ops):
        is_passed_on = op.kind is OpKind.CONSTRAINT or not (
            op.kind is not OpKind.COMPUTE or any(buffers.is_stored[value] for value in op.results)
        )
        times = {time for value in op.results for time in reads[value]} if is_passed_on else set()
        if op.results and op.results[0] in with_product:
            times = {buffers.time_of(with_product[op.results[0]])}
        is_last = op.index in buffers.updates or not (is_passed_on or op.kind is OpKind.COMPUTE)
        is_last |= is_passed_on and any(ends[value] for value in op.results)
        times = times or {buffers.time_of(op.index)}
        times = times.union(*(computed.get(value, ()) for value in op.results))
        for value in op.operands:
            if computes_again(op, value, computed):
                computed[value] |= times
                continue
            for place in {value, buffers.owner[value]}:
                reads[place] |= times
                ends[place] |= is_last
    return reads, ends
