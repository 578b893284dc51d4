"""Threads that work on one problem side by side until the question is settled or time is up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from solvers.incumbent import Incumbent
from solvers.problem import Problem

POLL_SECONDS = 0.02


@dataclass(slots=True)
class Lane:
    """One way to solve, run in a thread.

    Args:
        name: For the log.
        run: Works on the problem, offers what it finds, returns soon once the incumbent is over.
        incumbent: Shared with other lanes, or its own.
        seconds: How long it ran; None while it does.
        error: What stopped it.
    """

    name: str
    run: Callable[[Problem, Incumbent], None]
    incumbent: Incumbent
    seconds: float | None = None
    error: Exception | None = field(default=None)

    def start(self, problem: Problem) -> threading.Thread:
        """Starts a thread that does not keep the process alive."""
        thread = threading.Thread(target=self._run, args=(problem,), name=self.name, daemon=True)
        thread.start()
        return thread

    def _run(self, problem: Problem) -> None:
        began = time.monotonic()
        try:
            self.run(problem, self.incumbent)
        except Exception as error:
            self.error = error
            self.incumbent.note(f"{self.name} failed: {error}")
        finally:
            self.seconds = time.monotonic() - began


def run_lanes(
    problem: Problem,
    lanes: Sequence[Lane],
    *,
    is_settled: Callable[[], bool],
    watch: Callable[[], None],
    grace_seconds: float,
) -> None:
    """Runs lanes until all return or `is_settled`; then every incumbent is stopped.

    A lane that does not return within the grace is left behind: what it offered counts, what it
    may offer later does not. An interrupt (`KeyboardInterrupt`) stops the lanes and is raised on.

    Args:
        problem: Given to every lane.
        lanes: Run at the same time.
        is_settled: Asked every `POLL_SECONDS`.
        watch: Called as often, in the calling thread.
        grace_seconds: Wall time the lanes have to return once stopped.

    Raises:
        Exception: What a lane raised, if all did.
    """
    threads = [lane.start(problem) for lane in lanes]
    try:
        while any(thread.is_alive() for thread in threads) and not is_settled():
            for thread in threads:
                if thread.is_alive():
                    thread.join(POLL_SECONDS)
                    break
            watch()
    finally:
        for lane in lanes:
            lane.incumbent.stop()
        until = time.monotonic() + grace_seconds
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
    errors = [lane.error for lane in lanes if lane.error is not None]
    if len(errors) == len(lanes) and errors:
        raise errors[0]
