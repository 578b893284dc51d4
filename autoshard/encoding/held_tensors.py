"""Which tensors a device holds, and for which part of the program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from autoshard.encoding.encoded import Decoded, Encoded
from autoshard.encoding.roomy_chip import RoomyChip
from autoshard.graph.program import OpKind
from autoshard.plans.plan import HeldTensor
from solvers import EdgeMemory

_PER_OP = 12
_MOST = 1000
_SMALLEST = 1e-3  # of what is held at the peak; smaller tensors explain nothing


class _Span(NamedTuple):
    """Bytes held for a part of the program; `term` counts node terms first, then edge terms."""

    minus_bytes: int
    start: int
    stop: int
    term: int

    @property
    def held(self) -> tuple[int, int, int]:
        return self.start, self.stop, -self.minus_bytes


@dataclass(frozen=True, slots=True)
class Holdings:
    """What a device holds under a plan.

    Args:
        encoded: The problem.
        decoded: The plan.
        choices: The plan as the solver says it.
        spans: Everything held, the largest first.
    """

    encoded: Encoded
    decoded: Decoded
    choices: tuple[int, ...]
    spans: tuple[_Span, ...]

    @classmethod
    def of(
        cls,
        encoded: Encoded,
        decoded: Decoded,
        choices: tuple[int, ...],
        chip: RoomyChip | None = None,
    ) -> Holdings:
        """All that is in device memory: not what lies on a chip that has room for it."""
        spans = sorted(_spans(encoded, decoded, choices))
        if chip is not None:
            there = _on_chip(encoded, chip, spans)
            spans = [span for span in spans if span not in there]
        return cls(encoded, decoded, choices, tuple(spans))

    @property
    def arguments(self) -> list[tuple[int, int, int]]:
        """When each argument is there and let go, and its bytes."""
        return [span.held for span in self.spans if self._is_argument(span)]

    @property
    def temporaries(self) -> list[tuple[int, int, int]]:
        """When each other tensor is made and let go, and its bytes."""
        return [span.held for span in self.spans if not self._is_argument(span)]

    def _is_argument(self, span: _Span) -> bool:
        return _is_argument(self.encoded, span)

    def at(self, op: int, most: int) -> tuple[HeldTensor, ...]:
        """The largest tensors held at an op, largest first."""
        held = [span for span in self.spans if span.start <= op < span.stop]
        return tuple(map(self._tensor, held[:most]))

    def largest(self, peak_bytes: int) -> tuple[HeldTensor, ...]:
        """The tensors that say where memory goes: at every op, the largest ones held there.

        Args:
            peak_bytes: Most held at one time; tensors below a thousandth of it are left out.

        Returns:
            In the order in which they are first held.
        """
        num_held = np.zeros(len(self.encoded.graph.ops), dtype=np.int64)
        kept: list[_Span] = []
        for span in self.spans:
            if len(kept) == _MOST or -span.minus_bytes < _SMALLEST * peak_bytes:
                break
            part = num_held[span.start : span.stop]
            if part.size and part.min() < _PER_OP:
                part += 1
                kept.append(span)
        kept.sort(key=lambda span: (span.start, span.minus_bytes, span.stop, span.term))
        return tuple(map(self._tensor, kept))

    def _tensor(self, span: _Span) -> HeldTensor:
        num_nodes = len(self.encoded.problem.node_memory)
        if span.term < num_nodes:
            return self._value(span)
        return self._copy(span, span.term - num_nodes)

    def _value(self, span: _Span) -> HeldTensor:
        encoded, decoded = self.encoded, self.decoded
        term = encoded.problem.node_memory[span.term]
        op = encoded.maker(term.node)
        value = encoded.graph.values[(op.results or op.operands)[0]]
        has_steps = decoded.candidates[op.index].streamed is not None
        is_panel = has_steps and span.stop == span.start + 1  # a result is read later than that
        is_copy = op.kind is OpKind.ARGUMENT and not encoded.is_argument(term)
        name = value.name or op.name
        if is_panel:
            name = f"panels and sums of {op.name}"
        elif is_copy:
            name = f"narrower copy of {name}"
        return HeldTensor(
            name=name,
            kind=_kind(is_argument=encoded.is_argument(term), is_copy=is_copy, is_panel=is_panel),
            source=op.source,
            type_text=value.type_text,
            sharding=encoded.parts.to_sharding(decoded.layouts[value.index]),
            local_bytes=-span.minus_bytes,
            start=span.start,
            stop=span.stop,
        )

    def _copy(self, span: _Span, place: int) -> HeldTensor:
        encoded, graph = self.encoded, self.encoded.graph
        edge = encoded.problem.edges[encoded.problem.edge_memory[place].edge]
        made = graph.values[encoded.maker(edge.u).results[0]]
        is_shared = edge.v >= len(encoded.ops)
        reader = graph.ops[span.start] if is_shared else encoded.maker(edge.v)
        return HeldTensor(
            name=f"copy of {made.name or made.type_text} for {reader.name}",
            kind="copy",
            source=reader.source,
            type_text=made.type_text,
            sharding=encoded.parts.to_sharding(self.decoded.layouts[made.index]),
            local_bytes=-span.minus_bytes,
            start=span.start,
            stop=span.stop,
        )


def _kind(*, is_argument: bool, is_copy: bool, is_panel: bool) -> str:
    if is_panel:
        return "panels"
    if is_copy:
        return "copy"
    return "argument" if is_argument else "value"


def _is_argument(encoded: Encoded, span: _Span) -> bool:
    terms = encoded.problem.node_memory
    return span.term < len(terms) and encoded.is_argument(terms[span.term])


def _on_chip(encoded: Encoded, chip: RoomyChip, spans: Sequence[_Span]) -> set[_Span]:
    """What of it waits on the chip: what waits the least has its room first."""
    problem = encoded.problem
    temporaries = [span for span in spans if not _is_argument(encoded, span)]
    kept = np.zeros_like(chip.held)
    for start, stop, num_bytes in (span.held for span in temporaries):
        kept[start:stop] += num_bytes
    left = chip.left_beside(kept)
    there = set()
    for span in sorted(temporaries, key=lambda span: (span.stop - span.start, span)):
        place = span.term - len(problem.node_memory)
        may_be = (
            chip.has_value(problem.node_memory[span.term])
            if place < 0
            else chip.has_copy(problem.edge_memory[place])
        )
        beside = left[span.start : span.stop]
        if may_be and beside.size and beside.min() >= -span.minus_bytes:
            beside += span.minus_bytes
            there.add(span)
    return there


def _spans(encoded: Encoded, decoded: Decoded, choices: tuple[int, ...]) -> Iterator[_Span]:
    problem = encoded.problem
    for number, term in enumerate(problem.node_memory):
        num_bytes = int(term.usage[choices[term.node]])
        if num_bytes:
            yield _Span(-num_bytes, term.start, term.stop, number)
    for number, copy in enumerate(problem.edge_memory, start=len(problem.node_memory)):
        edge = problem.edges[copy.edge]
        num_bytes = int(copy.usage[choices[edge.u], choices[edge.v]])
        if num_bytes:
            stop = _copy_stop(encoded, decoded, copy)
            yield _Span(-num_bytes, copy.start, stop, number)


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
