"""Which look-ups in cut tables, and scatters into them, the partitioner cuts as it is told."""

from __future__ import annotations

from autoshard.candidates.candidate import Candidate
from autoshard.graph.program import Op, OpClass, OpKind
from autoshard.layouts import Layout, MeshParts


def without_moved_look_ups(
    parts: MeshParts, op: Op, candidates: tuple[Candidate, ...]
) -> tuple[Candidate, ...]:
    """The candidates of an op that are compiled as they are; all, if none is.

    Rows are looked up in a table that is cut by rows, each device in its own, and summed. Where the
    indices are cut too, and the first axis of the mesh cuts neither of them, the partitioner lines
    devices up in another order, and permutes indices and rows between all of them: over the
    network, where that axis is slices. So it does for scatters into such a table. Seen with jaxlib
    0.10.2 on CPU, meshes of 2 x 2 x 2 and 2 x 4 x 4, and with libtpu 0.0.42 on two slices of a v5p;
    with any other axis left over nothing moves. Where the first axis cuts columns it depends on
    sizes: on 2 x 4 x 4 a table of 32768 rows was permuted, one of 4096 was not. A look-up is
    permuted too where its sum is cut along a dimension that the indices do not cut, such as
    columns.

    Args:
        parts: The mesh.
        op: Any op.
        candidates: How it may be cut.
    """
    is_gather = op.op_class is OpClass.GATHER and len(op.operands) > 1
    is_scatter = op.op_class is OpClass.SCATTER and len(op.operands) == 3
    if op.kind is not OpKind.COMPUTE or not (is_gather or is_scatter):
        return candidates
    first = next((part for part, size in enumerate(parts.sizes) if size > 1), None)
    kept = tuple(
        one
        for one in candidates
        if not _is_moved(one, first, is_scatter=is_scatter) and not (is_gather and _is_cut(one))
    )
    return kept if kept and len(kept) < len(candidates) else candidates


def _is_moved(candidate: Candidate, first: int | None, *, is_scatter: bool) -> bool:
    table, indices = candidate.operands[:2]
    if not any(table) or not any(indices) or not (candidate.reduced or candidate.scattered):
        return False
    taken = candidate.operands[2] if is_scatter else candidate.partial
    of_rows = _parts(table) - _parts(taken)
    return first not in of_rows | _parts(indices)


def _parts(layout: Layout) -> set[int]:
    return {part for dim in layout for part in dim}


def _is_cut(candidate: Candidate) -> bool:
    """Whether rows found for cut indices are summed and cut along what the indices do not cut."""
    indices = candidate.operands[1]
    if not candidate.scattered or not any(indices):
        return False
    cut = _parts(indices)
    pairs = zip(candidate.partial, candidate.results[0], strict=True)
    return any(before != after and cut.isdisjoint(before) for before, after in pairs)
