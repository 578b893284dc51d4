"""Stacks that loops write: one slice in each run, along the leading dimension."""

from __future__ import annotations

from autoshard.graph.program import Graph, Op, OpKind


def stacked_by(graph: Graph, join: Op) -> Op | None:
    """The op that writes one slice of a loop's carry each run, which nothing else does to it."""
    if join.name != "while" or join.kind is not OpKind.JOIN or len(join.operands) != 2:
        return None
    op = graph.maker(join.operands[1])
    is_stack = op.name == "dynamic_update_slice" and op.operands[0] == join.results[0]
    return op if is_stack and graph.consumers[op.results[0]] == [join.index] else None


def written_stacks(graph: Graph) -> frozenset[int]:
    """Values in the buffers of stacks that loops write, whole slices along the first dimension."""
    found: set[int] = set()
    for join in graph.ops:
        stacking = stacked_by(graph, join)
        if stacking is not None:
            written, whole = (graph.values[v].shape for v in (stacking.operands[1], *join.results))
            if written[:1] == (1,) and written[1:] == whole[1:]:
                found.update((*join.operands, *join.results))
    return frozenset(found)
