"""What the scalable lane tries: how walks cool down, and which of them are worth more time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from solvers.problem import IntArray
from solvers.scalable.annealer import Schedule
from solvers.scalable.clock import Effort

SCHEDULES = tuple(
    Schedule(hot=hot, cold=hot / 100, price_share=price_share)
    for hot in (10.0, 3.0, 1.0, 0.3, 0.1)
    for price_share in (0.7, 1.0)
)
"""All are tried for a short time; the better ones go on for longer."""

SCHEDULES_FROM_MESSAGES = tuple(
    Schedule(hot=hot, cold=hot / 100, price_share=1.0) for hot in (0.3, 0.1)
)
"""Cool enough to stay near where they start: at what the messages say by then."""

REPAIRS = (
    Schedule(hot=0.0, cold=0.0, price_share=1.0),
    Schedule(hot=3.0, cold=0.03, price_share=1.0),
    Schedule(hot=10.0, cold=0.1, price_share=1.5),
    Schedule(hot=10.0, cold=0.1, price_share=3.0),
    Schedule(hot=30.0, cold=0.3, price_share=10.0),
)
"""Walks towards choices that fit, from the cheapest to the leanest ones."""

RESTARTS = "restarts"

_NEAR = 1.05  # costs this close to the best are worth more time where the way there differs


@dataclass(slots=True)
class Trial:
    """Something to spend time on.

    Args:
        name: For the log.
        run: Spends an effort; returns the least cost met.
        cost: What the last run returned.
    """

    name: str
    run: Callable[[Effort, IntArray], float]
    cost: float = math.inf


def worth_more(trials: list[Trial]) -> list[Trial]:
    """Picks the better third, and at least the best of either kind where the two are near."""
    kept = trials[: max(1, len(trials) // 3)]
    others = [
        trial
        for trial in trials[len(kept) :]
        if trial.name == RESTARTS and trial.cost <= _NEAR * kept[0].cost
    ]
    return kept + others
