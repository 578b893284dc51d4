"""Tensors of a plan as rows, those alike but for the numbers of their names as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autoshard.plans.plan import LiveTensor, PlannedTensor
from autoshard.report.alike import gather_alike
from autoshard.report.spec_text import format_spec

_NUM_TENSORS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRow:
    """Arguments or results that differ only in the numbers of their names.

    Args:
        name: With ranges: `params['blocks'][0..31]['w1']`.
        count: How many there are.
        type_text: `f32[512, 2048]`.
        spec: Sharding as a `PartitionSpec`.
        local_bytes: One device's pieces of all of them.
    """

    name: str
    count: int
    type_text: str
    spec: str
    local_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRow:
    """Tensors alive at the memory peak, alike but for the numbers of their names."""

    name: str
    source: str
    count: int
    type_text: str
    spec: str
    local_bytes: int


def tensor_rows(tensors: Sequence[PlannedTensor]) -> tuple[tuple[TensorRow, ...], int, int]:
    """The heaviest rows in argument order; how many tensors, of how many bytes, are left out."""
    rows = [
        TensorRow(
            name=name,
            count=len(positions),
            type_text=type_text,
            spec=spec,
            local_bytes=sum(tensors[position].local_bytes for position in positions),
        )
        for name, (type_text, spec), positions in gather_alike(
            (tensor.name, (type_text(tensor), format_spec(tensor.sharding))) for tensor in tensors
        )
    ]
    heaviest = sorted(range(len(rows)), key=lambda index: -rows[index].local_bytes)
    shown = set(heaviest[:_NUM_TENSORS])
    left_out = [row for index, row in enumerate(rows) if index not in shown]
    return (
        tuple(row for index, row in enumerate(rows) if index in shown),
        sum(row.count for row in left_out),
        sum(row.local_bytes for row in left_out),
    )


def live_rows(live: Sequence[LiveTensor]) -> list[LiveRow]:
    """Tensors that are held together, the heaviest first."""
    rows = [
        LiveRow(
            name=name,
            source=source,
            count=len(positions),
            type_text=type_text,
            spec=spec,
            local_bytes=sum(live[position].local_bytes for position in positions),
        )
        for name, (source, type_text, spec), positions in gather_alike(
            (tensor.name, (tensor.source, tensor.type_text, format_spec(tensor.sharding)))
            for tensor in live
        )
    ]
    return sorted(rows, key=lambda row: -row.local_bytes)


def type_text(tensor: PlannedTensor) -> str:
    """`f32[512, 2048]`."""
    return f"{tensor.dtype}[{', '.join(map(str, tensor.shape))}]"
