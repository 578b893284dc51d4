"""Collectives that a compiler puts into one call: those that do not wait for one another."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from autoshard.lowering.schedule import Task


@dataclass(slots=True)
class _Call:
    """Collectives that run together.

    Args:
        members: Places of their tasks.
        num_bytes: Of their results.
        before: Calls that some of it has to come before: a bit for each.
    """

    members: list[int] = field(default_factory=list)
    num_bytes: int = 0
    before: int = 0


def combined_calls(
    tasks: Sequence[Task], keys: Mapping[int, Hashable], most: float
) -> Mapping[int, int]:
    """By place of a task, the first of its call.

    A call takes collectives as long as its results are no larger than the compiler allows, the last
    ones first.

    Args:
        tasks: Of a body.
        keys: Of collectives, by place of the task: those of equal keys may be one call.
        most: Bytes of the results of a call.

    Source: XLA's `CombineInstructionsByKey`.
    """
    calls: list[_Call] = []
    by_key: dict[Hashable, list[int]] = {}
    behind = [0] * len(tasks)  # per task, calls that wait for it: a bit for each
    for place in reversed(range(len(tasks))):
        task = tasks[place]
        mask = behind[place]
        if place in keys:
            waits = _closed(mask, calls)
            open_ = by_key.setdefault(keys[place], [])
            found = next((n for n in open_ if _takes(calls[n], n, task, waits, most)), None)
            if found is None:
                found = len(calls)
                calls.append(_Call())
                open_.append(found)
            calls[found].members.append(place)
            calls[found].num_bytes += task.num_bytes
            calls[found].before |= waits
            mask |= 1 << found
        for need in task.needs:
            behind[need] |= mask
    return {place: call.members[-1] for call in calls for place in call.members}


def _takes(call: _Call, number: int, task: Task, waits: int, most: float) -> bool:
    return not waits >> number & 1 and call.num_bytes + task.num_bytes <= most


def _closed(mask: int, calls: Sequence[_Call]) -> int:
    """These calls and all that come after them."""
    found, left = mask, mask
    while left:
        number = left.bit_length() - 1
        left ^= 1 << number
        new = calls[number].before & ~found
        found |= new
        left |= new
    return found
