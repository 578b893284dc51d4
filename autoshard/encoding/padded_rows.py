"""What look-ups and reshapes hold where rows have to lie in whole lanes: copies of their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod

import numpy as np
import numpy.typing as npt

from autoshard.candidates.candidate import Candidate
from autoshard.graph.buffers import Buffers
from autoshard.graph.program import Graph, Op, OpClass, OpKind, Value
from autoshard.graph.row_lookups import takes_rows
from autoshard.graph.run_late import is_for_updates
from autoshard.layouts import Layout, MeshParts


def padded_row_bytes(
    graph: Graph,
    parts: MeshParts,
    op: Op,
    candidates: Sequence[Candidate],
    lanes: int,
    rows: frozenset[int],
) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Values, and bytes per device of padded copies of them, that an op makes while it runs.

    A gather or a scatter of whole rows wants them one after the other, and so does a reshape that
    merges the dimensions before them. Rows that do not fill their lanes lie otherwise before.

    Yields:
        int64[num_candidates], 0 where rows fill their lanes; nothing for an op that takes no rows.
    """
    if lanes == 1 or not (takes_rows(graph, op) or _merges_rows(graph, op)):
        return
    sides = [(value, False, place) for place, value in enumerate(op.operands)]
    if op.op_class is OpClass.SCATTER:  # its result lies where what it adds to lay
        sides = sides[1:]
    if op.name != "reshape":  # of which the result is the copy
        sides += [(value, True, place) for place, value in enumerate(op.results)]
    width = graph.values[op.results[0]].shape[-1]
    for value, is_result, place in sides:
        found = graph.values[value]
        if (
            len(found.shape) < 2 or found.shape[-1] != width or value in rows
        ):  # indices, or as wanted
            continue
        held = [
            0
            if is_result and _sums_rows(op, candidate)
            else padded_bytes(found, candidate.side(is_result=is_result)[place], parts, lanes)
            for candidate in candidates
        ]
        if any(held):
            yield value, np.array(held, dtype=np.int64)


def copied_from(
    op: Op, value: int, tables: Mapping[int, int], time_of: Callable[[int], int]
) -> int:
    """When an op's padded copy of a value is made: of a table before the first look-up of any.

    Args:
        op: A look-up, a scatter or a reshape.
        value: That it copies.
        tables: As of `looked_up_tables`.
        time_of: When an op of some index runs.
    """
    run = time_of(op.index)
    is_table = op.index in tables.values() and value == op.operands[0]
    return min(run, *map(time_of, tables.values())) if is_table else run


def summed_row_bytes(
    graph: Graph, parts: MeshParts, op: Op, candidates: Sequence[Candidate], lanes: int
) -> npt.NDArray[np.int64] | None:
    """Bytes per device of the narrow rows, padded, that a gather makes to be summed over devices.

    Returns:
        int64[num_candidates], 0 where nothing is summed or rows fill their lanes; None for an op
        with no such rows.
    """
    if lanes == 1 or op.op_class is not OpClass.GATHER or not takes_rows(graph, op):
        return None
    made = graph.values[op.results[0]]
    held = [
        padded_bytes(made, c.partial or c.results[0], parts, lanes) if _sums_rows(op, c) else 0
        for c in candidates
    ]
    return np.array(held, dtype=np.int64) if any(held) else None


def summed_with(graph: Graph) -> dict[int, int]:
    """By gather of rows, the last of those whose sums one call takes: none needs another's."""
    found = (op for op in graph.ops if op.op_class is OpClass.GATHER and takes_rows(graph, op))
    gathers = {op.index for op in found}
    first, stop = min(gathers, default=0), max(gathers, default=-1) + 1
    before = [0] * len(graph.values)  # gathers on the longest way to each value
    groups: dict[int, tuple[int, int, str]] = {}
    for op in graph.ops[first:stop]:
        is_gather = op.index in gathers
        for value in op.results:
            there = [before[operand] for operand in op.operands if operand < value]
            before[value] = max(there, default=0) + is_gather
        if is_gather:
            made = op.results[0]
            groups[op.index] = (op.region, before[made], graph.values[made].dtype)
    last = {group: index for index, group in groups.items()}
    return {index: last[group] for index, group in groups.items()}


def scattered_at_any_time(graph: Graph, buffers: Buffers) -> int | None:
    """The scatter of rows that only updates read, the largest of several: an embedding's gradient.

    Nothing else waits for it, and one after the other they run when it suits the compiler.
    """
    found = [
        op
        for op in graph.ops
        if op.op_class is OpClass.SCATTER
        and takes_rows(graph, op)
        and is_for_updates(graph, buffers.updates, op.results[0])
    ]
    largest = max(found, key=lambda op: graph.values[op.operands[-1]].num_bytes, default=None)
    return None if largest is None else largest.index


def _sums_rows(op: Op, candidate: Candidate) -> bool:
    return op.op_class is OpClass.GATHER and bool(candidate.reduced or candidate.scattered)


def padded_bytes(value: Value, layout: Layout, parts: MeshParts, lanes: int) -> int:
    """Bytes of a device's rows, padded to whole lanes; 0 where they fill them, or are elements."""
    rows, row = _local_rows(value.shape, layout, parts)
    is_padded = row > 1 and row % lanes
    return rows * -(-row // lanes) * lanes * value.bits // 8 if is_padded else 0


def _merges_rows(graph: Graph, op: Op) -> bool:
    """True where a reshape makes fewer dimensions of those before the last one."""
    if op.name != "reshape" or op.kind is not OpKind.COMPUTE:
        return False
    before, after = (graph.values[value].shape for value in (op.operands[0], op.results[0]))
    if min(len(before), len(after)) < 2 or before[-1] != after[-1]:
        return False
    return sum(size > 1 for size in before) > sum(size > 1 for size in after)


def _local_rows(shape: tuple[int, ...], layout: Layout, parts: MeshParts) -> tuple[int, int]:
    """How many rows a device has, and of how many elements."""
    local = parts.local_shape(layout, shape)
    return prod(local[:-1]), local[-1]
