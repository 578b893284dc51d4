"""Parts of which the products of loops put their operands together."""

from __future__ import annotations

from collections.abc import Mapping

from autoshard.graph.dataflow import source_of, trace_back
from autoshard.graph.op_traits import TRANSPARENT
from autoshard.graph.program import Graph, Op, OpClass, OpKind


def joined_parts(graph: Graph) -> Mapping[int, int]:
    """Element-wise results of loops that are padded and added, or put side by side, for products.

    libtpu 0.0.42 has products put them together, and writes the parts before: of 281 products with
    such joins, of the gradients of gates in recurrent networks for a v5e and a v5p, none computed a
    part itself.

    Returns:
        By part, the first part of the same product's operand.
    """
    found: dict[int, int] = {}
    for op in graph.ops:
        if op.op_class is OpClass.MATMUL and op.repeat > 1:
            for value in op.operands:
                parts = sorted(_parts_of(graph, value))
                found.update((part, found.get(part, parts[0])) for part in parts)
    return found


def _parts_of(graph: Graph, joined: int) -> set[int]:
    """The element-wise results of loops that a value is padded, concatenated and added from."""

    def passes(op: Op, _: int) -> bool:
        return op.kind is OpKind.COMPUTE and (op.name == "add" or op.name in TRANSPARENT)

    found: set[int] = set()
    for value in trace_back(graph, [joined], passes).frontier:
        op = graph.maker(value)
        if op.kind is OpKind.COMPUTE and op.name in ("pad", "concatenate"):
            parts = op.operands[:1] if op.name == "pad" else op.operands
            found |= {part for one in parts if (part := _computed(graph, one)) is not None}
    return found


def _computed(graph: Graph, value: int) -> int | None:
    """The element-wise result of a loop that a part is, renamed or not."""
    source = source_of(
        graph, value, lambda op, _: op.kind is OpKind.COMPUTE and op.name in TRANSPARENT
    )
    op = graph.maker(source)
    is_computed = op.op_class is OpClass.ELEMENTWISE and op.repeat > 1
    return source if is_computed else None
