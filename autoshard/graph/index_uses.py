"""Values that a kernel would have to compute at too many positions, and that are stored instead.

A kernel with one loop over its result computes a fused value once for every way in which its
readers move elements: `a[1:] + a[:-1]` needs `a` at two positions. Chains of slices, pads and
concatenations multiply these (an associative scan, a stencil), so compilers set a limit.

Source: XLA's `FusionNodeIndexingEvaluation`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autoshard.graph.program import Graph, Op, OpKind

_EMITTED_ONCE = frozenset({"concatenate", "pad"})
"""Ops of which a kernel computes an element for one position alone."""


def store_widely_indexed(graph: Graph, stored: list[bool], most: int) -> None:
    """Mark the values as stored that a kernel computes at more positions than it may.

    Args:
        graph: The program.
        stored: By value, whether it has a buffer; changed.
        most: Positions at which a kernel computes a value; of pads and concatenations one.
    """
    uses: dict[int, Mapping[int, Mapping[int, int]]] = {}
    for op in reversed(graph.ops):
        for value in op.results:
            if op.kind is not OpKind.COMPUTE or stored[value]:
                continue
            found = _uses(graph, value, stored, uses)
            times = max((sum(by_reader.values()) for by_reader in found.values()), default=0)
            if times > (1 if op.name in _EMITTED_ONCE else most):
                stored[value] = True
            else:
                uses[value] = found


def _uses(
    graph: Graph,
    value: int,
    stored: Sequence[bool],
    uses: Mapping[int, Mapping[int, Mapping[int, int]]],
) -> Mapping[int, Mapping[int, int]]:
    """By kernel, and by the op that sets the position there, how often a value is computed.

    A kernel goes by the value that it writes.
    """
    found: dict[int, dict[int, int]] = {}
    for index in graph.consumers[value]:
        reader = graph.ops[index]
        if reader.kind is not OpKind.COMPUTE:
            continue
        for result in reader.results:
            kernels = {result: {-1: 1}} if stored[result] else uses.get(result, {})
            for kernel, positions in kernels.items():
                own = found.setdefault(kernel, {})
                if _keeps_positions(graph, reader, value):
                    own.update(positions)
                else:
                    own[index] = sum(positions.values())
    return found


def _keeps_positions(graph: Graph, reader: Op, value: int) -> bool:
    shape = graph.values[reader.results[0]].shape
    return reader.name == "reshape" or shape == graph.values[value].shape
