"""Which tensors a device holds, and for which part of the program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autoshard.encoding.device_room import DeviceRoom
from autoshard.encoding.encoded import Decoded, Encoded
from autoshard.encoding.late_gradients import made_when_read
from autoshard.encoding.roomy_chip import RoomyChip
from autoshard.encoding.spans import Span, is_argument, spans_of
from autoshard.graph.program import OpKind
from autoshard.plans.plan import HeldTensor

_PER_OP = 12
_MOST = 1000
_SMALLEST = 1e-3  # of what is held at the peak; smaller tensors explain nothing


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
    spans: tuple[Span, ...]

    @classmethod
    def of(
        cls,
        encoded: Encoded,
        decoded: Decoded,
        choices: tuple[int, ...],
        room: DeviceRoom,
        chip: RoomyChip | None = None,
    ) -> Holdings:
        """All that is in device memory: not what lies on a chip that has room for it."""
        held = list(spans_of(encoded, decoded, choices))
        spans = sorted(room.indices.until_looked_up(encoded, decoded, held))
        if chip is not None:
            there = _on_chip(encoded, chip, spans)
            spans = [span for span in spans if span not in there]
        spans = sorted(made_when_read(encoded, decoded, room.buffers, spans))
        return cls(encoded, decoded, choices, tuple(spans))

    @property
    def arguments(self) -> list[tuple[int, int, int]]:
        """When each argument is there and let go, and its bytes."""
        return [span.held for span in self.spans if is_argument(self.encoded, span)]

    @property
    def temporaries(self) -> list[tuple[int, int, int]]:
        """When each other tensor is made and let go, and its bytes."""
        return [span.held for span in self.spans if not is_argument(self.encoded, span)]

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
        kept: list[Span] = []
        for span in self.spans:
            if len(kept) == _MOST or -span.minus_bytes < _SMALLEST * peak_bytes:
                break
            part = num_held[span.start : span.stop]
            if part.size and part.min() < _PER_OP:
                part += 1
                kept.append(span)
        kept.sort(key=lambda span: (span.start, span.minus_bytes, span.stop, span.term))
        return tuple(map(self._tensor, kept))

    def _tensor(self, span: Span) -> HeldTensor:
        num_nodes = len(self.encoded.problem.node_memory)
        if span.term < num_nodes:
            return self._value(span)
        return self._copy(span, span.term - num_nodes)

    def _value(self, span: Span) -> HeldTensor:
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

    def _copy(self, span: Span, place: int) -> HeldTensor:
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


def _on_chip(encoded: Encoded, chip: RoomyChip, spans: Sequence[Span]) -> set[Span]:
    """What of it waits on the chip: what waits the least has its room first."""
    problem = encoded.problem
    temporaries = [span for span in spans if not is_argument(encoded, span)]
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
