"""A line on the terminal that shows how a long solve is getting on."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from autoshard.report.quantities import format_percent, format_seconds

if TYPE_CHECKING:
    from solvers import Progress

QUIET_SECONDS = 1.0
_FRAMES = "-\\|/"


class ProgressLine:
    """Told of a solve's progress, shows it; nothing is written where nobody watches.

    Use it as a context and pass it on as `progress`. The line appears once a solve has run for a
    second and is gone when the context ends.

    Args:
        file: Where to show it; the standard error output, if not given.
        seconds_per_cost: What one unit of the solver's costs is worth.
        quiet_seconds: How long to wait before showing anything.
    """

    def __init__(
        self,
        file: TextIO | None = None,
        *,
        seconds_per_cost: float,
        quiet_seconds: float = QUIET_SECONDS,
    ) -> None:
        self._console = Console(file=file or sys.stderr)
        self._seconds_per_cost = seconds_per_cost
        self._quiet_seconds = quiet_seconds
        self._latest: Progress | None = None
        self._told_at = 0.0
        self._live: Live | None = None

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def __call__(self, progress: Progress) -> None:
        if not self._console.is_terminal:
            return
        self._latest = progress
        self._told_at = time.monotonic()
        if self._live is None and progress.seconds >= self._quiet_seconds:
            self._live = Live(
                console=self._console,
                get_renderable=self._line,
                refresh_per_second=4,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()

    def _line(self) -> Text:
        if self._latest is None:
            return Text()
        since = time.monotonic() - self._told_at
        frame = _FRAMES[int(4 * since) % len(_FRAMES)]
        text = format_progress(self._latest, self._seconds_per_cost, seconds_since=since)
        return Text(f"{frame} {text}", no_wrap=True, overflow="crop")


def format_progress(
    progress: Progress, seconds_per_cost: float, *, seconds_since: float = 0.0
) -> str:
    """`solve 12 s: step 7.81 ms, at least 7.70 ms, gap 1.41 %`.

    Args:
        progress: What the solver said last.
        seconds_per_cost: What one unit of its costs is worth.
        seconds_since: How long ago it said so.
    """
    text = f"{progress.stage} {progress.seconds + seconds_since:.0f} s: "
    bound = progress.lower_bound * seconds_per_cost
    if progress.cost is None:
        return f"{text}no plan yet, at least {format_seconds(bound)} a step"
    cost = progress.cost * seconds_per_cost
    gap = max(0.0, (cost - bound) / cost) if cost else 0.0
    return (
        f"{text}step {format_seconds(cost)}, at least {format_seconds(bound)}, "
        f"gap {format_percent(gap)}"
    )
