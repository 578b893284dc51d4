"""Tensors of a plan as rows, those alike but for the numbers of their names as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autoshard.plans.plan import LiveTensor, PlannedTensor
from autoshard.report.alike import gather_alike, gather_places
from autoshard.report.followers import moments_of
from autoshard.sharding.spec_text import format_spec

_NUM_TENSORS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRow:
    """Arguments or results that differ only in the numbers of their names.

    Args:
        name: With ranges: `params['blocks'][0..31]['w1']`.
        count: How many there are.
        moments: Names of their moments told here, in the same sharding: `mu`, `nu`.
        type_text: `f32[512, 2048]`.
        spec: Sharding as a `PartitionSpec`, and where they lie, if that is not the device.
        local_bytes: One device's pieces of all of them, moments included.
    """

    name: str
    count: int
    moments: tuple[str, ...]
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


def _place_text(tensor: PlannedTensor) -> str:
    spec = format_spec(tensor.sharding)
    return f"{spec} on the host" if tensor.is_on_host else spec


def tensor_rows(tensors: Sequence[PlannedTensor]) -> tuple[tuple[TensorRow, ...], int, int]:
    """The heaviest rows in argument order; how many tensors, of how many bytes, are left out."""
    followers = moments_of(tensors)
    following = {position for moments in followers.values() for _, position in moments}
    own = [position for position in range(len(tensors)) if position not in following]
    rows = []
    for name, (text, spec, moments), places in gather_alike(
        (
            tensors[position].name,
            (
                type_text(tensors[position]),
                _place_text(tensors[position]),
                tuple(name for name, _ in followers.get(position, ())),
            ),
        )
        for position in own
    ):
        told = [own[place] for place in places]
        told += [copy for position in told for _, copy in followers.get(position, ())]
        size = sum(tensors[position].local_bytes for position in told)
        row = TensorRow(
            name=name,
            count=len(places),
            moments=moments,
            type_text=text,
            spec=spec,
            local_bytes=size,
        )
        rows.append(row)
    heaviest = sorted(range(len(rows)), key=lambda index: -rows[index].local_bytes)
    shown = set(heaviest[:_NUM_TENSORS])
    left_out = [row for index, row in enumerate(rows) if index not in shown]
    return (
        tuple(row for index, row in enumerate(rows) if index in shown),
        sum(row.count * (1 + len(row.moments)) for row in left_out),
        sum(row.local_bytes for row in left_out),
    )


def live_rows(live: Sequence[LiveTensor]) -> list[LiveRow]:
    """Tensors that are held together, the heaviest first."""
    named = [tensor for tensor in live if not tensor.source]
    made = [tensor for tensor in live if tensor.source]
    rows = [
        _live_row(name, "", kind, [named[place] for place in places])
        for name, kind, places in gather_alike((tensor.name, _kind(tensor)) for tensor in named)
    ] + [
        _live_row(name, source, kind, [made[place] for place in places])
        for source, (name, kind), places in gather_places(
            (tensor.source, (tensor.name, _kind(tensor))) for tensor in made
        )
    ]
    return sorted(rows, key=lambda row: -row.local_bytes)


def _live_row(
    name: str, source: str, kind: tuple[str, str], tensors: Sequence[LiveTensor]
) -> LiveRow:
    return LiveRow(
        name=name,
        source=source,
        count=len(tensors),
        type_text=kind[0],
        spec=kind[1],
        local_bytes=sum(tensor.local_bytes for tensor in tensors),
    )


def _kind(tensor: LiveTensor) -> tuple[str, str]:
    """Its type and its sharding as a `PartitionSpec`."""
    return tensor.type_text, format_spec(tensor.sharding)


def type_text(tensor: PlannedTensor) -> str:
    """`f32[512, 2048]`."""
    return f"{tensor.dtype}[{', '.join(map(str, tensor.shape))}]"
