"""The buffers of a plan in the user's terms: which tensors a device holds, and when."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoshard.encoding.encoded import Decoded, Encoded
from autoshard.graph.program import OpKind
from autoshard.lowering.local_program import Buffer, LocalProgram, Space
from autoshard.plans.plan import HeldTensor, LiveTensor

_NUM_LIVE = 40
_PER_OP = 12
_MOST = 1000
_SMALLEST = 1e-3  # of what is held at the peak; smaller tensors explain nothing


@dataclass(frozen=True, slots=True)
class HeldTensors:
    """What a device holds in HBM under a plan.

    Args:
        program: Its local program; buffers are sorted by size.
    """

    encoded: Encoded
    decoded: Decoded
    program: LocalProgram

    def live_at(self, op: int) -> tuple[LiveTensor, ...]:
        """The largest tensors held at an op, largest first."""
        found = [
            one
            for one in self.program.buffers
            if one.start <= op < one.stop and one.space is not Space.VMEM
        ]
        return tuple(_live(self._tensor(one)) for one in found[:_NUM_LIVE])

    def largest(self, peak_bytes: int) -> tuple[HeldTensor, ...]:
        """The tensors that say where memory goes: at every op, the largest ones held there.

        Args:
            peak_bytes: Most held at one time; tensors below a thousandth of it are left out.

        Returns:
            In the order in which they are first held.
        """
        num_held = np.zeros(len(self.encoded.graph.ops), dtype=np.int64)
        kept: list[Buffer] = []
        for one in self.program.buffers:
            if one.space is Space.VMEM:
                continue
            if len(kept) == _MOST or one.num_bytes < _SMALLEST * peak_bytes:
                break
            part = num_held[one.start : one.stop]
            if part.size and part.min() < _PER_OP:
                part += 1
                kept.append(one)
        kept.sort(key=lambda one: (one.start, -one.num_bytes, one.stop))
        return tuple(map(self._tensor, kept))

    def _tensor(self, one: Buffer) -> HeldTensor:
        value, op = self.encoded.graph.values[one.value], self.encoded.graph.ops[one.op]
        name = value.name or op.name
        if one.kind == "chunks":
            name = f"panels and sums of {op.name}"
        elif one.kind == "work":
            name = f"working memory of {op.name}"
        elif one.kind == "copy" and op.kind is OpKind.ARGUMENT:
            name = f"narrower copy of {name}"
        elif one.kind == "copy":
            name = f"copy of {value.name or value.type_text} for {op.name}"
        return HeldTensor(
            name=name,
            kind="panels" if one.kind == "chunks" else one.kind,
            source=op.source,
            type_text=value.type_text,
            sharding=self.encoded.parts.to_sharding(self.decoded.layouts[value.index]),
            local_bytes=one.num_bytes,
            start=one.start,
            stop=one.stop,
        )


def _live(held: HeldTensor) -> LiveTensor:
    return LiveTensor(
        name=held.name,
        source=held.source,
        type_text=held.type_text,
        sharding=held.sharding,
        local_bytes=held.local_bytes,
    )
