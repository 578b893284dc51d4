"""Ops that run in one kernel though each writes a result of its own: XLA's multi-output fusion."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from autoshard.graph.op_traits import FUSIBLE
from autoshard.graph.program import Graph, Op, OpClass, OpKind


def update_kernels(
    graph: Graph, updates: Collection[int], stored: Sequence[bool]
) -> Mapping[int, int]:
    """By op that updates a state, the first one that writes this state in the same kernel.

    XLA's multi-output fusion puts an update together with those of one shape whose results it
    reads. The first of them is left out.

    Args:
        graph: The program.
        updates: Element-wise ops of which come results of the program only.
        stored: By value, whether it has a buffer.
    """
    first = {op: op for op in updates}
    behind: dict[int, frozenset[int]] = {}  # by value, updates whose results it is computed from

    def root(op: int) -> int:
        while first[op] != op:
            op = first[op]
        return op

    for op in graph.ops:
        if op.kind is not OpKind.FREE and not (
            op.kind is OpKind.COMPUTE and (op.op_class in FUSIBLE or op.index in first)
        ):
            continue
        read = frozenset[int]().union(*(behind.get(value, frozenset()) for value in op.operands))
        if op.index in first and any(stored[value] for value in op.results):
            shape = graph.values[op.results[0]].shape
            for other in read:
                if graph.values[graph.ops[other].results[0]].shape == shape:
                    ends = sorted((root(other), root(op.index)))
                    first[ends[1]] = ends[0]
            read = frozenset({op.index})
        behind.update((value, read) for value in op.results if read)
    return {op: root(op) for op in first if root(op) != op}


def beside_sums(graph: Graph, stored: Sequence[bool]) -> Mapping[int, int]:
    """By element-wise op, the sum to one number in whose kernel it runs: both read one tensor.

    So a cross-entropy is summed where the gradient of its log-sum-exp is computed, and the logits
    that it looks up are not held until the end of the step.

    Args:
        graph: The program.
        stored: By value, whether it has a buffer.
    """
    read: dict[int, frozenset[int]] = {}  # by value that has no buffer, those it is computed from
    sums: dict[int, list[Op]] = {}  # by tensor that they read, if it has the shape that they sum
    found: dict[int, int] = {}
    for op in graph.ops:
        is_computed = op.kind is OpKind.COMPUTE and op.op_class in FUSIBLE | {OpClass.REDUCE}
        if op.kind is not OpKind.FREE and not is_computed:
            continue
        sources = frozenset[int]().union(
            *({value} if stored[value] else read.get(value, ()) for value in op.operands)
        )
        read.update((value, sources) for value in op.results if not stored[value])
        made = graph.values[op.results[0]]
        if op.op_class is OpClass.REDUCE:
            summed = graph.values[op.operands[0]].shape
            if not made.shape and summed:
                for value in sources:
                    if graph.values[value].shape == summed:
                        sums.setdefault(value, []).append(op)
            continue
        for value in sorted(sources):
            for one in sums.get(value, ()):
                is_alike = graph.values[one.operands[0]].shape == made.shape
                if is_alike and one.region == op.region and one.results[0] not in sources:
                    found.setdefault(op.index, one.index)
    return found
