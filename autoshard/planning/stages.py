"""Where the time of planning goes, and telling it while it goes there."""

from __future__ import annotations

import gc
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TypeVar

from autoshard.encoding.picoseconds import PICOSECONDS
from autoshard.planning.interrupts import Overdue, told_first
from solvers import Progress

TRACE = "trace and lower"
COSTS = "candidates and costs"
SEARCH = "solve"
_LONG = frozenset({SEARCH, "mesh search"})
"""Stages that may take minutes."""

_PROPAGATION = 2.0
"""Times the seconds of tracing, which propagation takes with what it reads first: 2.0 of a U-Net
(2026-11-29)."""
_SELDOM = 200_000
"""New objects after which a long stage looks for cycles among them. A choice."""

_LOGGER = logging.getLogger("autoshard")

T = TypeVar("T")


class TimeLimit(float):
    """Wall seconds, some of them spent before planning began: by a command as it starts."""

    spent = 0.0

    @staticmethod
    def of(seconds: float, spent: float) -> TimeLimit:
        limit = TimeLimit(seconds)
        limit.spent = spent
        return limit


@dataclass(frozen=True, slots=True, kw_only=True)
class StageProgress:
    """A sign of life from planning; prints as `solve 12 s: bounds`.

    Args:
        stage: `trace and lower`, `solve`, `constraints`; "" where planning is done, or waits.
        seconds: Since the stage began.
        note: How far it is.
        step_seconds: Of the best plan so far, in the stages that look for one.
        least_step_seconds: No plan takes less, as far as is proven.
    """

    stage: str
    seconds: float
    note: str = ""
    step_seconds: float | None = None
    least_step_seconds: float | None = None

    def __str__(self) -> str:
        note = f": {self.note}" if self.note else ""
        return f"{self.stage} {self.seconds:.0f} s{note}"


@dataclass(slots=True)
class Stages:
    """Wall seconds by stage of planning.

    Every stage is logged under `autoshard` as it ends.

    Args:
        progress: Told of every stage as it begins, of how far it is, and when none runs any more.
        limit_seconds: For all stages together. Those that every plan needs run to their end.
        is_interrupted: Somebody asked for the best so far.
        seconds: By stage.
    """

    progress: Callable[[StageProgress], None] | None = None
    limit_seconds: float = math.inf
    is_interrupted: bool = False
    seconds: dict[str, float] = field(default_factory=dict)
    _running: list[tuple[str, float]] = field(default_factory=list)
    _spent: float = field(init=False)

    def __post_init__(self) -> None:
        limit = self.limit_seconds
        self._spent = limit.spent if isinstance(limit, TimeLimit) else 0.0

    @property
    def seconds_left(self) -> float:
        """Of the limit; time between stages is the caller's, and does not count."""
        running = time.perf_counter() - self._running[0][1] if self._running else 0.0
        return max(0.0, self.limit_seconds - self._spent - running)

    @property
    def is_over(self) -> bool:
        """True once planning leaves out all that a plan can do without."""
        return self.is_interrupted or self.seconds_left <= 0

    @property
    def propagation_seconds(self) -> float:
        """About what it takes to propagate shardings through the program for the first time."""
        return _PROPAGATION * self.seconds.get(TRACE, 0.0)

    def is_over_in(self, seconds: float) -> Callable[[], bool]:
        """A test for the end of so many seconds from now on, or for an interrupt."""
        begun = time.perf_counter()
        return lambda: self.is_interrupted or time.perf_counter() - begun > seconds

    def settled(self, step: Callable[[], T]) -> T:
        """The result of a step that is short once planning is over; an interrupt makes it so.

        The step finds that it is over as soon as it looks; what does not look soon is done again.
        """
        was_interrupted = self.is_interrupted
        try:
            with nullcontext() if was_interrupted else told_first(self._interrupt):
                return step()
        except KeyboardInterrupt as stop:
            if was_interrupted or (self.is_interrupted and not isinstance(stop, Overdue)):
                raise
            self.is_interrupted = True
            return step()

    def _interrupt(self) -> bool:
        """Plan no further than every plan needs; searches end by what is raised in them."""
        if self._running and self._running[-1][0] == SEARCH:
            return False
        self.is_interrupted = True
        return True

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        """Add the time of a block to a stage.

        Cycles among objects are looked for seldom meanwhile, see `collecting`.
        """
        with collecting(never=name not in _LONG), self._timed(name):
            yield

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        self._running.append((name, start))
        self.tell("")
        try:
            yield
        finally:
            spent = time.perf_counter() - start
            self._running.pop()
            if not self._running:
                self._spent += spent
            self.seconds[name] = self.seconds.get(name, 0.0) + spent
            _LOGGER.info("%s took %.2f s", name, spent)
            self.tell("")

    def tell(self, note: str) -> None:
        """How far the stage is that runs."""
        self._tell(note, None, None)

    def tell_solve(self, progress: Progress) -> None:
        """How far a solve is."""
        cost = None if progress.cost is None else progress.cost / PICOSECONDS
        self._tell(progress.stage, cost, progress.lower_bound / PICOSECONDS)

    def _tell(self, note: str, step: float | None, least: float | None) -> None:
        stage, began = self._running[-1] if self._running else ("", time.perf_counter())
        if note:
            _LOGGER.debug("%s: %s", stage, note)
        if self.progress is not None:
            self.progress(
                StageProgress(
                    stage=stage,
                    seconds=time.perf_counter() - began,
                    note=note,
                    step_seconds=step,
                    least_step_seconds=least,
                )
            )


def collecting(*, never: bool) -> AbstractContextManager[None]:
    """No search for cycles among objects, or one in many.

    Stages make objects by the million that live on: looking through them took a fifth of the time.
    While a plan is made, those of stages that are over are frozen, so that no search sees them.
    """
    return (_COLLECTING_NEVER if never else _COLLECTING_SELDOM).held()


class _Shared:
    """A setting of the process that threads hold together; the last one puts it back.

    Args:
        change: Changes it; returns what puts it back.
    """

    def __init__(self, change: Callable[[], Callable[[], None]]) -> None:
        self._change, self._num_holders, self._lock = change, 0, threading.Lock()

    @contextmanager
    def held(self) -> Iterator[None]:
        with self._lock:
            if not self._num_holders:
                self._put_back = self._change()
            self._num_holders += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_holders -= 1
                if not self._num_holders:
                    self._put_back()


_SETS_ASIDE = threading.Event()
"""Objects of stages that are over are frozen, until nothing holds `_COLLECTING_SELDOM`."""


def _collect_never() -> Callable[[], None]:
    was_enabled = gc.isenabled()
    gc.disable()

    def put_back() -> None:
        if _SETS_ASIDE.is_set():
            gc.freeze()
        if was_enabled:
            gc.enable()

    return put_back


def _collect_seldom() -> Callable[[], None]:
    first, *others = before = gc.get_threshold()
    gc.set_threshold(max(_SELDOM, first), *others)
    if not gc.get_freeze_count():  # a process that froze its own objects keeps them so
        _SETS_ASIDE.set()

    def put_back() -> None:
        gc.set_threshold(*before)
        if _SETS_ASIDE.is_set():
            _SETS_ASIDE.clear()
            gc.unfreeze()

    return put_back


_COLLECTING_NEVER, _COLLECTING_SELDOM = _Shared(_collect_never), _Shared(_collect_seldom)
