"""The buffers of a decided plan: bytes, live range, memory space."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from autoshard.backends import LayoutPolicy
from autoshard.encoding.encode import Encoder
from autoshard.encoding.encoded import Decoded, Encoded
from autoshard.encoding.tiles import tiled_in
from autoshard.graph.program import OpKind
from autoshard.lowering.late_gradients import made_when_read
from autoshard.lowering.live_ranges import LiveRange, live_ranges
from autoshard.lowering.local_program import Buffer, Space
from autoshard.lowering.vmem_assignment import VmemAssignment


def live_buffers(
    encoder: Encoder, encoded: Encoded, decoded: Decoded, choices: tuple[int, ...]
) -> tuple[Buffer, ...]:
    """Buffers in HBM, the largest first, then those in VMEM.

    Args:
        encoder: Of the problem.
        encoded: The problem.
        decoded: The plan.
        choices: The plan as the solver says it.
    """
    room = encoder.room
    found = live_ranges(encoded, decoded, choices, room.indices)
    assignment = VmemAssignment.for_plan(room, encoded, decoded, choices, found)
    there: set[LiveRange] = set()
    spilled: list[Buffer] = []
    soon: set[Buffer] = set()
    if assignment is not None:
        there, soon = assignment.resident(found)
        spilled = [
            replace(one, space=Space.HBM) for one in assignment.short_lived if one not in soon
        ]
    outside = [one for one in found if one not in there] if there else found
    outside = made_when_read(encoded, decoded, room.buffers, outside)
    in_hbm = [*_buffers(encoded, decoded, outside), *spilled]
    in_vmem = [*_buffers(encoded, decoded, there, Space.VMEM), *soon]
    return (*sorted(in_hbm, key=_largest_first), *sorted(in_vmem, key=_largest_first))


def _largest_first(one: Buffer) -> tuple[int, int, int, int, int]:
    return -one.num_bytes, one.start, one.stop, one.value, one.op


def tiled_arguments(encoded: Encoded, decoded: Decoded, tiling: LayoutPolicy) -> tuple[int, ...]:
    """Bytes that a device holds of each argument of a program, with its padding."""
    found = []
    for op in encoded.graph.arguments:
        value = encoded.graph.values[op.results[0]]
        found.append(tiled_in(encoded.parts, tiling, value, decoded.layouts[value.index]))
    return tuple(found)


def _buffers(
    encoded: Encoded, decoded: Decoded, ranges: Iterable[LiveRange], space: Space = Space.HBM
) -> Iterator[Buffer]:
    problem = encoded.problem
    num_nodes = len(problem.node_memory)
    for num_bytes, start, stop, number in ranges:
        if number < num_nodes:
            term = problem.node_memory[number]
            op = encoded.maker(term.node)
            value = (op.results or op.operands)[0]
            is_here_from_the_start = encoded.is_argument(term)
            kind = "value"
            if decoded.candidates[op.index].streamed is not None and stop == start + 1:
                kind = "chunks"  # the result is read later than that
            elif is_here_from_the_start:
                kind = "argument"
            elif op.kind is OpKind.ARGUMENT:
                kind = "copy"  # converted for its readers
        else:
            edge = problem.edges[problem.edge_memory[number - num_nodes].edge]
            value, kind, is_here_from_the_start = encoded.maker(edge.u).results[0], "copy", False
            is_shared = edge.v >= len(encoded.ops)
            op = encoded.graph.ops[start] if is_shared else encoded.maker(edge.v)
        yield Buffer(
            kind=kind,
            value=value,
            op=op.index,
            num_bytes=num_bytes,
            start=start,
            stop=stop,
            space=Space.ARGUMENT if is_here_from_the_start else space,
        )
