"""The collectives of a decided plan, as the backend runs them: by level of the machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf, prod
from typing import TypeAlias

from autoshard.candidates.streamed import messages_of
from autoshard.costing.costing import Costing
from autoshard.encoding.encoded import Decoded, Encoded
from autoshard.graph.program import Op
from autoshard.layouts import Parts
from autoshard.lowering.local_program import Collective
from autoshard.reshard import Step, StepKind

_Planned: TypeAlias = tuple[str, Parts, int, float]
"""Kind, mesh parts, bytes per device, and the width that elements are sent in over their own."""


@dataclass(frozen=True, slots=True)
class Collectives:
    """Collectives of ops and of reshards.

    Each carries the seconds that it takes alone; `sharing` scales several to what they are priced
    at together.

    Args:
        costing: Of the mesh and the machine.
        encoded: The problem.
        decoded: The plan.
    """

    costing: Costing
    encoded: Encoded
    decoded: Decoded
    _alike: dict[_Planned, tuple[Collective, ...]] = field(default_factory=dict)

    def of_op(self, op: Op) -> tuple[Collective, ...]:
        """Halos, sums and chunks of an op, or what the user wrote; counted per run of the op.

        Those that may run beside kernels are asynchronous: halos as the sums after them do.
        """
        candidate = self.decoded.candidates[op.index]
        is_summed = candidate.reduced or candidate.scattered or candidate.streamed is not None
        if not (is_summed or op.collective or op.windows):
            return ()
        return (*self._halos(op), *self._sums(op), *self._chunks(op), *self._written(op))

    def of_step(self, op: Op, value: int, step: Step, bits: int) -> tuple[Collective, ...]:
        """One step of a reshard for a reader, elements sent in so many bits."""
        found = self.encoded.graph.values[value]
        larger = step.after if step.kind is StepKind.ALL_GATHER else step.before
        num_bytes = found.num_bytes // self.encoded.parts.num_pieces(larger)
        narrowed = bits / found.bits
        return tuple(
            replace(one, value=value)
            for one in self._transfers(op, step.kind.value, step.parts, num_bytes, 1.0, narrowed)
        )

    def _halos(self, op: Op) -> Iterator[Collective]:
        """What neighbours exchange for a convolution or pool."""
        graph = self.encoded.graph
        for halo in self.costing.halos(graph, op, self.decoded.candidates[op.index]):
            image = graph.values[op.operands[0]]
            narrowed = self.costing.halo_bits(graph, op) / image.bits
            num_bytes = halo.num_elements * image.bits // 8
            found = self._transfers(op, "collective-permute", halo.parts, num_bytes, 1.0, narrowed)
            yield from (replace(one, is_async=True) for one in found)

    def _sums(self, op: Op) -> Iterator[Collective]:
        candidate = self.decoded.candidates[op.index]
        if candidate.streamed is not None or candidate.runs_per_sum == inf:
            return
        if not (candidate.reduced or candidate.scattered):
            return
        graph = self.encoded.graph
        sums = self.costing.sums_of(graph, op, candidate)
        is_async = self.costing.backend.schedule.is_async
        for value in op.results:
            for one in sums:
                sent = int(self.costing.sent_bytes(graph.values[value])) * one.num_gathered
                num_bytes = sent // one.pieces
                for found in self._transfers(
                    op, one.kind, one.parts, num_bytes, 1 / candidate.runs_per_sum
                ):
                    yield replace(found, is_async=is_async(one.kind))

    def _chunks(self, op: Op) -> Iterator[Collective]:
        """What a collective matmul gathers, passes on and sums."""
        candidate = self.decoded.candidates[op.index]
        if candidate.streamed is None or op.rule is None:
            return
        for found in messages_of(self.encoded.parts, op.rule, candidate):
            bits = self.costing.step_bits(self.encoded.graph, op, found.place)
            num_bytes = found.num_elements(self.encoded.parts) * bits // 8
            kind, count = found.message.kind, found.message.count
            sent = tuple(self._transfers(op, kind, found.parts, num_bytes, count))
            for one in sharing(sent, self.costing.message_seconds(found, bits) * count):
                yield replace(one, is_async=found.is_shift)

    def _written(self, op: Op) -> Iterator[Collective]:
        """What the user wrote in a `shard_map` body."""
        if op.collective is None:
            return
        axes, size = self.costing.written_axes(op.collective)
        mesh = self.encoded.parts.mesh
        candidate = self.decoded.candidates[op.index]
        yield Collective(
            kind=op.collective.kind,
            axes=tuple(self._axis(a.name, a.pre_size, a.size_on(mesh)) for a in axes),
            group_size=size,
            bytes_per_device=self.costing.written_bytes(self.encoded.graph, op, candidate),
            seconds=1.0,
            is_async=self.costing.backend.schedule.is_async(op.collective.kind),
            op=op.index,
            name=op_text(op),
        )

    def _transfers(
        self,
        op: Op,
        kind: str,
        parts: Parts,
        num_bytes: int,
        count: float,
        narrowed: float = 1.0,
    ) -> Iterator[Collective]:
        """The collectives that a planned one becomes.

        Args:
            op: That it serves.
            kind: As of `Collective`.
            parts: The mesh parts it works over.
            num_bytes: Per device of the larger side, as wide as elements lie.
            count: Runs for each run of the op.
            narrowed: The width that elements are sent in where the compiler narrows them, over
                that.
        """
        key = kind, parts, num_bytes, narrowed
        if key not in self._alike:
            self._alike[key] = tuple(self._alone(*key))
        name = op_text(op)
        for one in self._alike[key]:
            yield replace(one, op=op.index, name=name, count=count)

    def _alone(
        self, kind: str, parts: Parts, num_bytes: int, narrowed: float
    ) -> Iterator[Collective]:
        """The same, of no op yet."""
        for one in self.costing.transfers(kind, parts, num_bytes):
            sent = int(num_bytes * (narrowed if one.is_narrowed else 1.0)) // one.pieces
            yield Collective(
                kind=one.kind,
                axes=tuple(self._axis(part.name, part.pre_size, part.size) for part in one.axes),
                group_size=prod(part.size for part in one.axes),
                bytes_per_device=sent,
                seconds=self.costing.transfer_seconds(one, sent),
                is_async=False,
                name="",
            )

    def _axis(self, name: str, pre_size: int, size: int) -> str:
        is_whole = size == self.encoded.parts.mesh.sizes[name]
        return name if is_whole else f"{name}:({pre_size}){size}"


def sharing(collectives: Sequence[Collective], seconds: float) -> Iterator[Collective]:
    """Collectives of one reshard or op, which together take so many seconds."""
    alone = [one.seconds * one.count for one in collectives]
    total = sum(alone)
    for one, weight in zip(collectives, alone, strict=True):
        share = weight / total if total > 0 else 1 / len(collectives)
        yield replace(one, seconds=seconds * share / one.count)


def op_text(op: Op) -> str:
    """An op with its source line."""
    return f"{op.name} at {op.source}" if op.source else op.name
