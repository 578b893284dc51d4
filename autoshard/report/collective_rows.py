"""What a plan sends as rows: by kind of collective, and by op."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from autoshard.graph.collective import PredictedCollective
from autoshard.report.alike import gather_places

_NUM_HEAVIEST = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class HeavyOp:
    """An op that communicates, with its source line and the bytes per device of all its runs."""

    op: str
    num_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRow:
    """All collectives of one kind over the same axes.

    Args:
        kind: `all-gather`.
        axes: Mesh axes or sub-axes.
        group_size: Devices in one group.
        count: Runs in one step.
        num_bytes: Per device, all runs.
        heaviest: The ops that cause most of it.
        num_other_ops: How many more cause some.
    """

    kind: str
    axes: tuple[str, ...]
    group_size: int
    count: float
    num_bytes: float
    heaviest: tuple[HeavyOp, ...]
    num_other_ops: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MoverRow:
    """An op and all collectives it needs.

    Args:
        op: With its source line.
        kinds: `all-gather over data`, each once, the heaviest first.
        count: Runs in one step.
        num_bytes: Per device, all runs.
    """

    op: str
    kinds: tuple[str, ...]
    count: float
    num_bytes: float


def collective_rows(collectives: Iterable[PredictedCollective]) -> tuple[CollectiveRow, ...]:
    """Collectives of one kind over the same axes as one, the heaviest first."""
    groups: dict[tuple[str, tuple[str, ...], int], list[PredictedCollective]] = {}
    for collective in collectives:
        key = (collective.kind, collective.axes, collective.group_size)
        groups.setdefault(key, []).append(collective)
    rows = []
    for (kind, axes, group_size), members in groups.items():
        bytes_by_op = {
            op: sum(members[position].moved_bytes for position in positions)
            for op, _, positions in gather_places((member.op, None) for member in members)
        }
        heaviest = sorted(bytes_by_op.items(), key=lambda item: (-item[1], item[0]))
        rows.append(
            CollectiveRow(
                kind=kind,
                axes=axes,
                group_size=group_size,
                count=sum(member.count for member in members),
                num_bytes=sum(bytes_by_op.values()),
                heaviest=tuple(
                    HeavyOp(op=op, num_bytes=moved) for op, moved in heaviest[:_NUM_HEAVIEST]
                ),
                num_other_ops=max(0, len(heaviest) - _NUM_HEAVIEST),
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.num_bytes, row.kind, row.axes)))


def mover_rows(collectives: Iterable[PredictedCollective]) -> list[MoverRow]:
    """Ops that communicate, the heaviest first."""
    collectives = tuple(collectives)
    by_op = {
        op: [collectives[position] for position in positions]
        for op, _, positions in gather_places((one.op, None) for one in collectives)
    }
    rows = [
        MoverRow(
            op=op,
            kinds=tuple(
                dict.fromkeys(
                    f"{one.kind} over {', '.join(one.axes)}"
                    for one in sorted(members, key=lambda one: -one.moved_bytes)
                )
            ),
            count=sum(one.count for one in members),
            num_bytes=sum(one.moved_bytes for one in members),
        )
        for op, members in by_op.items()
    ]
    return sorted(rows, key=lambda row: -row.num_bytes)
