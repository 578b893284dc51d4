"""When a plan holds how many bytes, memory term by memory term of the choice problem."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from autoshard.encoding.encode import Encoder
from autoshard.encoding.encoded import Decoded, Encoded
from autoshard.encoding.padded_indices import PaddedIndices
from autoshard.graph.buffers import Buffers, find_buffers, read_stop
from autoshard.graph.program import OpKind
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


def in_order(
    encoder: Encoder,
    encoded: Encoded,
    decoded: Decoded,
    ranges: Sequence[LiveRange],
    starts: Mapping[tuple[int, int], int],
    times: Mapping[int, int],
    sums: Mapping[int, tuple[int, int]],
    filled: Mapping[int, int],
) -> list[LiveRange]:
    """The same live ranges, where every op is run at another time.

    Args:
        encoder: Of the problem.
        encoded: The problem.
        decoded: The plan.
        ranges: In program order.
        starts: By value and op, when an asynchronous collective starts to move the value for it.
        times: When each op is run, by its index.
        sums: By op whose results are summed over devices, when that begins and when it is over.
    """
    graph, before = encoded.graph, encoder.buffers
    now = find_buffers(graph, encoder.costing.backend, times, filled)
    end = len(graph.ops)
    found = []
    for one in ranges:
        if is_argument(encoded, one):
            found.append(one)
            continue
        value, is_copy = value_of(encoded, one)
        if is_copy:
            found.append(_copied_in_order(encoded, decoded, now, one, starts))
            continue
        maker = graph.maker(value)
        owner = before.owner[value]
        if (one.start, one.stop) == before.intervals[owner]:
            start, stop = now.intervals[owner]
        else:
            own = before.time_of(maker.index)
            start = times[maker.index if one.start in (own, maker.index) else min(one.start, end - 1)]
            last = max(one.stop - 1, one.start)
            if last == one.start:
                stop = start + 1
            elif one.stop >= end:
                stop = end
            else:
                stop = times[last] + 1
            if maker.index in sums:
                begun, over = sums[maker.index]
                if one.start != before.intervals[owner][0]:
                    start = begun
                stop = max(over, start) + 1
        found.append(one._replace(start=start, stop=max(stop, start + 1)))
    return sorted(found, key=largest_first)


def _copied_in_order(
    encoded: Encoded,
    decoded: Decoded,
    now: Buffers,
    one: LiveRange,
    starts: Mapping[tuple[int, int], int],
) -> LiveRange:
    graph = encoded.graph
    term = encoded.problem.edge_memory[one.term - len(encoded.problem.node_memory)]
    edge = encoded.problem.edges[term.edge]
    value = encoded.maker(edge.u).results[0]
    node = edge.v - len(encoded.ops)
    if node < 0:
        readers = [encoded.ops[edge.v]]
    else:
        read = encoded.reads[node]
        readers = [
            op
            for op, position in read.reads
            if decoded.candidates[op].operands[position] != decoded.layouts[read.value]
        ] or [op for op, _ in read.reads]
    ops = [graph.ops[index] for index in readers]
    if any(op.kind is OpKind.RESULT for op in ops):
        stop = len(graph.ops)
        start = min(now.time_of(op.index) for op in ops)
        start = min(start, *(starts.get((value, op.index), start) for op in ops))
        if one.start < min(op.index for op in ops):  # in the place of a donated argument
            start = now.intervals[now.owner[value]][0]
        return one._replace(start=start, stop=stop)
    start = min(now.time_of(op.index) for op in ops)
    start = min(start, *(starts.get((value, op.index), start) for op in ops))
    stop = max(read_stop(graph, now, op) for op in ops)
    return one._replace(start=start, stop=max(stop, start + 1))
