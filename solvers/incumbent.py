"""What the lanes of one solve tell each other: the best choices, the proven bound, when to stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from solvers.problem import FORBIDDEN
from solvers.result import relative_gap as gap_between

MOST_KEPT = 64
"""Answers kept, the first ones: dear ones that need little memory come before cheap ones."""


class Incumbent:
    """One problem in flight, shared by the threads that work on it.

    All costs, bounds and choices are those of the one problem given to the lanes. Callers check
    choices in integers before they offer them; `solve` has the referee check them again.

    Args:
        deadline: `time.monotonic` value to stop at; None for no limit.
        seed: For whatever is random.
        relative_gap: Over once ``(cost - bound) / cost`` is at most this.
        lower_bound: Already proven.
        on_change: Called, outside the lock, with (source, cost, bound) after each improvement.
        stop: Asked as well whether every lane should return soon.
    """

    def __init__(
        self,
        *,
        deadline: float | None = None,
        seed: int = 0,
        relative_gap: float = 0.0,
        lower_bound: int = 0,
        on_change: Callable[[str, int | None, int], None] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> None:
        self.deadline = deadline
        self.seed = seed
        self.relative_gap = relative_gap
        self._on_change = on_change
        self._is_asked_to_stop = stop
        self._lock = threading.Lock()
        self._cost: int | None = None
        self._choices: tuple[int, ...] | None = None
        self._kept: list[tuple[int, ...]] = []
        self._bound = lower_bound
        self._is_infeasible = False
        self._least_peak: int | None = None
        self._leanest: tuple[int, ...] | None = None
        self._peak_bound = 0
        self._clashing_rows: tuple[int, ...] = ()
        self._prices: dict[int, float] = {}
        self._log: list[str] = []
        self._stop = threading.Event()

    def offer(self, choices: Sequence[int], cost: int, *, source: str = "") -> bool:
        """Keeps a copy of allowed choices if they are the cheapest so far.

        Args:
            choices: One per node, allowed.
            cost: Theirs, exact.
            source: Who found them, for progress.

        Returns:
            Whether they were cheaper than all before.
        """
        with self._lock:
            if self._cost is not None and cost >= self._cost:
                return False
            self._cost = int(cost)
            self._choices = tuple(int(choice) for choice in choices)
            if len(self._kept) < MOST_KEPT:
                self._kept.append(self._choices)
        self._tell(source)
        return True

    def best(self) -> tuple[int | None, tuple[int, ...] | None]:
        """Returns the least cost offered and its choices; None and None before the first."""
        with self._lock:
            return self._cost, self._choices

    def kept(self) -> list[tuple[int, ...]]:
        """Returns the first answers that were cheaper than all before them, as they came."""
        with self._lock:
            return list(self._kept)

    def offer_bound(self, lower_bound: int, *, source: str = "") -> None:
        """Raises the bound: no allowed choices cost less, proven."""
        with self._lock:
            if lower_bound <= self._bound:
                return
            self._bound = int(lower_bound)
        self._tell(source)

    def bound(self) -> int:
        """Returns the highest bound proven, at most the best cost."""
        with self._lock:
            return self._bound if self._cost is None else min(self._bound, self._cost)

    def offer_least_peak(self, choices: Sequence[int], peak: int) -> None:
        """Keeps the choices with the smallest peak: none of them forbidden, memory may not fit."""
        with self._lock:
            if self._least_peak is None or peak < self._least_peak:
                self._least_peak = int(peak)
                self._leanest = tuple(int(choice) for choice in choices)

    def least_peak(self) -> tuple[int | None, tuple[int, ...] | None]:
        """Returns the smallest peak offered and its choices; None and None before the first."""
        with self._lock:
            return self._least_peak, self._leanest

    def offer_peak_bound(self, peak: int) -> None:
        """Raises the peak bound: no choices have a smaller peak, proven."""
        with self._lock:
            self._peak_bound = max(self._peak_bound, int(peak))

    def peak_bound(self) -> int:
        """Returns the highest peak bound proven."""
        with self._lock:
            return self._peak_bound

    def offer_prices(self, price_by_time: Mapping[int, float]) -> None:
        """Keeps the latest prices for memory that proved a bound."""
        with self._lock:
            self._prices = dict(price_by_time)

    def prices(self) -> dict[int, float]:
        """Returns them: cost per byte held, by time; empty where memory was not priced."""
        with self._lock:
            return dict(self._prices)

    def prove_infeasible(self, clashing_rows: Sequence[int] = ()) -> None:
        """Says that no choices are allowed, proven; with choices offered, that none is cheaper.

        Args:
            clashing_rows: Memory rows that no choices keep together, where known.
        """
        with self._lock:
            if self._cost is None:
                self._is_infeasible = True
                self._clashing_rows = tuple(int(row) for row in clashing_rows)
        self.offer_bound(FORBIDDEN)

    def clashing_rows(self) -> tuple[int, ...]:
        """Returns the rows given with the proof of infeasibility."""
        with self._lock:
            return self._clashing_rows

    def is_infeasible(self) -> bool:
        """Whether it is proven that no choices are allowed."""
        with self._lock:
            return self._is_infeasible

    def note(self, line: str) -> None:
        """Adds a line to the log: what was done and why."""
        with self._lock:
            self._log.append(line)

    def log(self) -> tuple[str, ...]:
        """Returns the lines noted so far."""
        with self._lock:
            return tuple(self._log)

    def stop(self) -> None:
        """Asks every lane to return soon."""
        self._stop.set()

    def is_stopped(self) -> bool:
        """Whether `stop` was called, or what stands above this incumbent is over."""
        if self._is_asked_to_stop is not None and self._is_asked_to_stop():
            return True
        return self._stop.is_set()

    def seconds_left(self) -> float | None:
        """Returns the wall time to the deadline, at least 0; None without one."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def is_over(self) -> bool:
        """Whether to return: stopped, out of time, nothing allowed, or the gap is proven."""
        if self.is_stopped():
            return True
        if self.deadline is not None and time.monotonic() >= self.deadline:
            return True
        with self._lock:
            return self._is_infeasible or (
                self._cost is not None and gap_between(self._cost, self._bound) <= self.relative_gap
            )

    def _tell(self, source: str) -> None:
        if self._on_change is not None:
            cost, _ = self.best()
            self._on_change(source, cost, self.bound())
