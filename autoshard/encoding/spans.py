"""How many bytes are held for which part of the program, memory term by memory term."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from autoshard.encoding.encoded import Decoded, Encoded
from solvers import EdgeMemory


class Span(NamedTuple):
    """Bytes held for a part of the program; `term` counts node terms first, then edge terms."""

    minus_bytes: int
    start: int
    stop: int
    term: int

    @property
    def held(self) -> tuple[int, int, int]:
        """When it is made and let go, and its bytes."""
        return self.start, self.stop, -self.minus_bytes


def spans_of(encoded: Encoded, decoded: Decoded, choices: tuple[int, ...]) -> Iterator[Span]:
    """All that a plan's memory terms hold, on the chip or not."""
    problem = encoded.problem
    for number, term in enumerate(problem.node_memory):
        num_bytes = int(term.usage[choices[term.node]])
        if num_bytes:
            yield Span(-num_bytes, term.start, term.stop, number)
    for number, copy in enumerate(problem.edge_memory, start=len(problem.node_memory)):
        edge = problem.edges[copy.edge]
        num_bytes = int(copy.usage[choices[edge.u], choices[edge.v]])
        if num_bytes:
            yield Span(-num_bytes, copy.start, _copy_stop(encoded, decoded, copy), number)


def is_argument(encoded: Encoded, span: Span) -> bool:
    """Whether it is what a device holds of an argument."""
    terms = encoded.problem.node_memory
    return span.term < len(terms) and encoded.is_argument(terms[span.term])


def value_of(encoded: Encoded, span: Span) -> tuple[int, bool]:
    """The value that is held, and whether as a copy of it that is moved for its readers."""
    problem = encoded.problem
    place = span.term - len(problem.node_memory)
    if place >= 0:
        return encoded.maker(problem.edges[problem.edge_memory[place].edge].u).results[0], True
    op = encoded.maker(problem.node_memory[span.term].node)
    return (op.results or op.operands)[0], False


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
