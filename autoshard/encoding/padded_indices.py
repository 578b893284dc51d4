"""Indices of rows that are gathered over several slices: a TPU pads their rows to whole lanes."""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.backend_habits import row_lanes, runs_by_level
from autoshard.encoding.device_room import DeviceRoom
from autoshard.encoding.encoded import Decoded, Encoded
from autoshard.encoding.spans import Span, value_of
from autoshard.graph.program import Graph, OpClass, OpKind
from autoshard.graph.row_lookups import takes_rows
from autoshard.layouts import Layout


def with_padded_indices(
    room: DeviceRoom, encoded: Encoded, decoded: Decoded, spans: Sequence[Span]
) -> list[Span]:
    """The same spans, where copies of indices from other slices lie in padded rows.

    They are there until the last look-up has read the piece that is cut from them for it.

    Args:
        room: Of the device.
        encoded: The problem.
        decoded: The plan.
        spans: All that is held.
    """
    every = tuple(range(len(encoded.parts.axes)))
    if not runs_by_level(room.backend) or room.costing.num_slices(every) == 1:
        return list(spans)
    looked_up = _looked_up(encoded.graph)
    copied = looked_up.keys() & _from_other_slices(room, encoded, decoded)
    lanes = row_lanes(room.backend)
    padded = []
    for span in spans:
        value, is_copy = value_of(encoded, span)
        if is_copy and value in copied:
            row = _row(encoded.graph.values[value].shape, lanes)
            more = -(-row // lanes) * lanes
            stop = max(span.stop, looked_up[value])
            span = span._replace(minus_bytes=span.minus_bytes * more // row, stop=stop)
        padded.append(span)
    return padded


def _from_other_slices(room: DeviceRoom, encoded: Encoded, decoded: Decoded) -> set[int]:
    """Values that some reader has gathered over slices."""
    return {
        value
        for index, candidate in decoded.candidates.items()
        for value, layout in zip(encoded.graph.ops[index].operands, candidate.operands, strict=True)
        if _is_gathered(room, decoded.layouts[value], layout)
    }


def _is_gathered(room: DeviceRoom, before: Layout, after: Layout) -> bool:
    if before == after:
        return False
    kept = {part for dim in after for part in dim}
    gathered = tuple(part for dim in before for part in dim if part not in kept)
    return room.costing.num_slices(gathered) > 1


def _row(shape: Sequence[int], lanes: int) -> int:
    """Elements of a row; a vector fills its lanes."""
    sizes = [size for size in shape if size > 1]
    return sizes[-1] if len(sizes) > 1 else lanes


def _looked_up(graph: Graph) -> dict[int, int]:
    """By value of which indices of rows are made, when the last look-up has read them."""
    found: dict[int, int] = {}
    for op in graph.ops:
        left = [op.operands[1]] if op.op_class is OpClass.GATHER and takes_rows(graph, op) else []
        while left:
            value = left.pop()
            if found.get(value, 0) <= op.index:
                found[value] = op.index + 1
                maker = graph.ops[graph.values[value].op]
                left += maker.operands if maker.kind is OpKind.COMPUTE else ()
    return found
