"""How long something may go on: by the clock where there is a deadline, else by its moves."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long something lasts.

    Args:
        seconds: Wall time; None to count moves.
        moves: How many where time is not counted.
    """

    seconds: float | None
    moves: int


class Clock:
    """Runs from its construction until the effort is spent.

    Args:
        effort: What may be spent.
        is_stopped: Ends it early.
    """

    def __init__(self, effort: Effort, is_stopped: Callable[[], bool]) -> None:
        self._effort = effort
        self._is_stopped = is_stopped
        self._begun = time.monotonic()
        self._moves = 0

    def count(self, moves: int) -> None:
        """Adds moves made."""
        self._moves += moves

    @property
    def is_timed(self) -> bool:
        return self._effort.seconds is not None

    def passed(self) -> float:
        """Returns the share of the effort that is spent, 1 and more once it is over."""
        if self._effort.seconds is None:
            return self._moves / max(1, self._effort.moves)
        return (time.monotonic() - self._begun) / max(1e-9, self._effort.seconds)

    def is_over(self) -> bool:
        return self.passed() >= 1 or self._is_stopped()
