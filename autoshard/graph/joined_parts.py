"""Parts of which the products of loops put their operands together."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from autoshard.graph.program import Graph, Op, OpClass, OpKind

_RENAMES = frozenset({"reshape", "transpose", "broadcast_in_dim", "convert"})


def joined_parts(graph: Graph) -> Mapping[int, int]:
    """Element-wise results of loops that are padded and added, or put side by side, for products.

    libtpu 0.0.42 has products put them together, and writes the parts before: of 281 products with
    such joins, of the gradients of gates in recurrent networks for a v5e and a v5p, none computed a
    part itself.

    Args:
        graph: The program.

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
    found: set[int] = set()
    seen: set[int] = set()
    todo = [joined]
    while todo:
        value = todo.pop()
        op = graph.maker(value)
        if value in seen or op.kind is not OpKind.COMPUTE:
            continue
        seen.add(value)
        if op.name == "add" or _is_renamed(graph, op):
            todo += op.operands
        elif op.name in ("pad", "concatenate"):
            parts = op.operands[:1] if op.name == "pad" else op.operands
            found |= {part for value in parts if (part := _computed(graph, value)) is not None}
    return found


def _computed(graph: Graph, value: int) -> int | None:
    """The element-wise result of a loop that a part is, renamed or not."""
    op = graph.maker(value)
    while op.kind is OpKind.COMPUTE and _is_renamed(graph, op):
        value = op.operands[0]
        op = graph.maker(value)
    is_computed = op.op_class is OpClass.ELEMENTWISE and op.repeat > 1
    return value if is_computed else None


def _is_renamed(graph: Graph, op: Op) -> bool:
    if op.name not in _RENAMES:
        return False
    before, after = (prod(graph.values[v].shape) for v in (op.operands[0], op.results[0]))
    return before == after
