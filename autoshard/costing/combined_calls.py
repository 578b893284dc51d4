"""Collectives that a compiler puts into one call: those that do not wait for one another."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Call:
    """Collectives that run together.

    Args:
        members: Their places.
        num_bytes: Of their results.
        before: Calls that some of it has to come before: a bit for each.
    """

    members: list[int] = field(default_factory=list)
    num_bytes: float = 0
    before: int = 0


def combined_calls(
    needs: Sequence[Sequence[int]],
    num_bytes: Sequence[float],
    keys: Mapping[int, Hashable],
    most: float,
) -> Mapping[int, int]:
    """By place of a collective, the first of its call.

    A call takes collectives as long as its results are no larger than the compiler allows, the last
    ones first.

    Args:
        needs: Per task of a body, the earlier ones that it waits for.
        num_bytes: Per task, of its results.
        keys: Of collectives, by place of the task: those of equal keys may be one call.
        most: Bytes of the results of a call.

    Source: XLA's `CombineInstructionsByKey`.
    """
    calls: list[_Call] = []
    by_key: dict[Hashable, list[int]] = {}
    behind = [0] * len(needs)  # per task, calls that wait for it: a bit for each
    for place in reversed(range(len(needs))):
        mask = behind[place]
        if place in keys:
            waits = _closed(mask, calls)
            open_ = by_key.setdefault(keys[place], [])
            fits = (
                number
                for number in open_
                if not waits >> number & 1 and calls[number].num_bytes + num_bytes[place] <= most
            )
            found = next(fits, len(calls))
            if found == len(calls):
                calls.append(_Call())
                open_.append(found)
            calls[found].members.append(place)
            calls[found].num_bytes += num_bytes[place]
            calls[found].before |= waits
            mask |= 1 << found
        for need in needs[place]:
            behind[need] |= mask
    return {place: call.members[-1] for call in calls for place in call.members}


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
