"""Where two plans of one program spend their time otherwise, line by line."""

from __future__ import annotations

from collections.abc import Iterable

from autoshard.explain.explanation import CollectiveChange, OpChange
from autoshard.graph.collective import PredictedCollective
from autoshard.lowering.account import Account

_NEGLIGIBLE_SHARE = 1e-3
"""Of the largest difference: what is not worth a line."""


def account_changes(before: Account, after: Account) -> tuple[OpChange, ...]:
    """The lines that take longer or shorter, the largest difference first.

    Ops of one name on one line count as one: a layer's copies, forward and backward.
    """
    seconds = [_seconds_by_op(account) for account in (before, after)]
    sent = [_bytes_by_op(account.collectives) for account in (before, after)]
    changes = [
        OpChange(
            op=op,
            before_seconds=seconds[0].get(op, 0.0),
            after_seconds=seconds[1].get(op, 0.0),
            collectives=_collective_changes(sent[0].get(op, {}), sent[1].get(op, {})),
        )
        for op in dict.fromkeys((*seconds[0], *seconds[1]))
    ]
    changes.sort(key=lambda change: -abs(change.extra_seconds))
    least = abs(changes[0].extra_seconds) * _NEGLIGIBLE_SHARE if changes else 0.0
    return tuple(change for change in changes if abs(change.extra_seconds) > least)


def _seconds_by_op(account: Account) -> dict[str, float]:
    found: dict[str, float] = {}
    for op in account.ops:
        text = f"{op.name} at {op.source}" if op.source else op.name
        spent = op.compute_seconds + op.communication_seconds
        found[text] = found.get(text, 0.0) + spent
    return found


_Kind = tuple[str, tuple[str, ...]]


def _bytes_by_op(collectives: Iterable[PredictedCollective]) -> dict[str, dict[_Kind, float]]:
    found: dict[str, dict[_Kind, float]] = {}
    for one in collectives:
        of_op = found.setdefault(one.op, {})
        kind = (one.kind, one.axes)
        of_op[kind] = of_op.get(kind, 0.0) + one.moved_bytes
    return found


def _collective_changes(
    before: dict[_Kind, float], after: dict[_Kind, float]
) -> tuple[CollectiveChange, ...]:
    changes = [
        CollectiveChange(
            kind=kind[0],
            axes=kind[1],
            before_bytes=before.get(kind, 0.0),
            after_bytes=after.get(kind, 0.0),
        )
        for kind in dict.fromkeys((*before, *after))
        if before.get(kind, 0.0) != after.get(kind, 0.0)
    ]
    return tuple(sorted(changes, key=lambda one: -abs(one.after_bytes - one.before_bytes)))
