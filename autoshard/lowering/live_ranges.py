"""When a plan holds how many bytes, memory term by memory term of the choice problem."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from autoshard.encoding.encoded import Decoded, Encoded
from autoshard.encoding.padded_indices import PaddedIndices
from solvers import EdgeMemory


class LiveRange(NamedTuple):
    """Bytes held for a part of the program; `term` counts node terms first, then edge terms."""

    num_bytes: int
    start: int
    stop: int
    term: int


def live_ranges(
    encoded: Encoded, decoded: Decoded, choices: tuple[int, ...], indices: PaddedIndices
) -> list[LiveRange]:
    """All that a plan's memory terms hold, in HBM or VMEM, the largest first."""
    found = _until_looked_up(encoded, decoded, indices, list(_ranges(encoded, decoded, choices)))
    return sorted(found, key=largest_first)


def largest_first(one: LiveRange) -> tuple[int, int, int, int]:
    """Sorts live ranges by size, then by place in the program."""
    return -one.num_bytes, one.start, one.stop, one.term


def _ranges(encoded: Encoded, decoded: Decoded, choices: tuple[int, ...]) -> Iterator[LiveRange]:
    problem = encoded.problem
    for number, term in enumerate(problem.node_memory):
        num_bytes = int(term.usage[choices[term.node]])
        if num_bytes:
            yield LiveRange(num_bytes, term.start, term.stop, number)
    for number, copy in enumerate(problem.edge_memory, start=len(problem.node_memory)):
        edge = problem.edges[copy.edge]
        num_bytes = int(copy.usage[choices[edge.u], choices[edge.v]])
        if num_bytes:
            yield LiveRange(num_bytes, copy.start, _copy_stop(encoded, decoded, copy), number)


def is_argument(encoded: Encoded, one: LiveRange) -> bool:
    """It is what a device holds of an argument."""
    terms = encoded.problem.node_memory
    return one.term < len(terms) and encoded.is_argument(terms[one.term])


def value_of(encoded: Encoded, one: LiveRange) -> tuple[int, bool]:
    """The value that is held; true where it is a copy of it that is resharded for its readers."""
    problem = encoded.problem
    place = one.term - len(problem.node_memory)
    if place >= 0:
        return encoded.maker(problem.edges[problem.edge_memory[place].edge].u).results[0], True
    op = encoded.maker(problem.node_memory[one.term].node)
    return (op.results or op.operands)[0], False


def _until_looked_up(
    encoded: Encoded, decoded: Decoded, indices: PaddedIndices, ranges: Sequence[LiveRange]
) -> Sequence[LiveRange]:
    """The same, where copies of indices of rows are held until the last look-up."""
    if not indices.stops:
        return ranges
    ops = encoded.graph.ops
    copied = {
        value
        for index, candidate in decoded.candidates.items()
        for value, layout in zip(ops[index].operands, candidate.operands, strict=True)
        if value in indices.stops and indices.is_gathered(decoded.layouts[value], layout)
    }
    found = []
    for one in ranges:
        value, is_copy = value_of(encoded, one)
        if is_copy and value in copied:
            one = one._replace(stop=max(one.stop, indices.stops[value]))
        found.append(one)
    return found


def _copy_stop(encoded: Encoded, decoded: Decoded, copy: EdgeMemory) -> int:
    """When a copy is let go: that for several readers, when none of them needs it any more.

    One that reads the value as it was made reads that.
    """
    node = encoded.problem.edges[copy.edge].v - len(encoded.ops)
    if node < 0:
        return copy.stop
    read = encoded.reads[node]
    moved = [
        stop
        for (op, position), stop in zip(read.reads, read.stops, strict=True)
        if decoded.candidates[op].operands[position] != decoded.layouts[read.value]
    ]
    return min(copy.stop, max([copy.start + 1, *moved] if moved else [copy.stop]))
