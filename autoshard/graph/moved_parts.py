"""Tensors that are parts of one another, which a TPU keeps in one order of dimensions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autoshard.graph.dataflow import spread
from autoshard.graph.op_traits import is_elementwise, is_matmul
from autoshard.graph.program import Graph, Op, OpKind

_MOVES = frozenset({"concatenate", "pad", "reverse", "slice"})
"""Ops that bring elements to other places along dimensions, and keep these."""


@dataclass(frozen=True, slots=True, eq=False)
class MovedParts:
    """Buffers of tensors that slices, pads, concatenations and element-wise ops make of each other.

    Groups with the same buffers are one object, which is compared by identity.

    Args:
        shapes: Each with the number of buffers of that shape; all of one rank.
        columns: Elements of the last dimension where the columns of a matmul were split into it; 0
            where none were.
    """

    shapes: tuple[tuple[tuple[int, ...], int], ...]
    columns: int = 0


def moved_parts(graph: Graph, is_stored: Sequence[bool]) -> Mapping[int, MovedParts]:
    """By computed value, the group that it belongs to, where that has buffers of several shapes."""

    def passes(op: Op) -> bool:
        return op.kind is OpKind.CONSTRAINT or is_elementwise(op) or op.name in _MOVES

    def reaches(op: Op, value: int, other: int) -> bool:
        before, after = graph.values[value].shape, graph.values[other].shape
        return before == after or (op.name in _MOVES and len(before) == len(after))

    found: dict[int, MovedParts] = {}
    groups: dict[tuple[tuple[tuple[tuple[int, ...], int], ...], int], MovedParts] = {}
    columns = _split_columns(graph)
    for op in graph.ops:
        if op.name not in _MOVES or op.results[0] in found:
            continue
        met = {op.results[0], *spread(graph, op.results, passes, reaches)}
        made = [v for v in met if graph.maker(v).kind is not OpKind.ARGUMENT]
        made = [v for v in made if graph.values[v].num_bytes]
        shapes = Counter(graph.values[v].shape for v in made if is_stored[v])
        widest = max((graph.values[v].shape[-1] for v in columns & met), default=0)
        key = tuple(sorted(shapes.items())), widest
        parts = groups.setdefault(key, MovedParts(*key))
        found.update((value, parts) for value in made)
    return {value: parts for value, parts in found.items() if len(parts.shapes) > 1}


def _split_columns(graph: Graph) -> frozenset[int]:
    """Reshapes of what matmuls make, or is computed of it, that split the last dimension."""
    made: set[int] = set()
    found: set[int] = set()
    for op in graph.ops:
        if is_matmul(op):
            made.update(op.results)
        elif made.isdisjoint(op.operands):
            continue
        elif op.kind is OpKind.CONSTRAINT or is_elementwise(op):
            made.update(op.results)
        elif op.name == "reshape":
            before, after = (graph.values[v].shape for v in (op.operands[0], op.results[0]))
            if len(after) > len(before) and after[: len(before) - 1] == before[:-1]:
                found.update(op.results)
    return frozenset(found)
