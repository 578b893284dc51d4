"""A line in a terminal or a notebook that shows how planning is getting on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from autoshard.planning.stages import StageProgress
from autoshard.report.quantities import format_percent, format_seconds

QUIET_SECONDS = 1.0
_FRAMES = "-\\|/"


class ProgressLine:
    """Told of the progress of planning, shows it; nothing is written where nobody watches.

    Pass it on as `progress`. The line appears once a stage has run for a second, and is gone when
    planning is done, or when the context ends that it may be used as.

    Args:
        file: Where to show it; the standard error output, or the cell of a notebook, if not given.
        quiet_seconds: How long to wait before showing anything.
    """

    def __init__(self, file: TextIO | None = None, *, quiet_seconds: float = QUIET_SECONDS) -> None:
        self._console = Console(file=file, stderr=file is None)
        self._quiet_seconds = quiet_seconds
        self._latest: StageProgress | None = None
        self._told_at = 0.0
        self._timer: threading.Timer | None = None
        self._live: Live | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._hide()

    def __call__(self, progress: StageProgress) -> None:
        if not (self._console.is_terminal or self._console.is_jupyter):
            return
        if not progress.stage:
            self._hide()
            return
        self._latest, self._told_at = progress, time.monotonic()
        if progress.seconds >= self._quiet_seconds:
            self._show()
        elif self._timer is None and self._live is None:
            self._timer = threading.Timer(self._quiet_seconds, self._show)
            self._timer.daemon = True
            self._timer.start()

    def _show(self) -> None:
        with self._lock:
            if self._live is not None or self._latest is None:
                return
            self._live = Live(
                console=self._console,
                get_renderable=self._line,
                refresh_per_second=4,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()

    def _hide(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        with self._lock:
            if self._live is not None:
                self._live.stop()
                self._live = None
            self._latest = None

    def _line(self) -> Text:
        latest = self._latest
        if latest is None:
            return Text()
        since = time.monotonic() - self._told_at
        frame = _FRAMES[int(4 * since) % len(_FRAMES)]
        text = format_progress(latest, seconds_since=since)
        return Text(f"{frame} {text}", no_wrap=True, overflow="crop")


def shown(
    progress: Callable[[StageProgress], None] | bool | None,
) -> Callable[[StageProgress], None] | None:
    """Who is told of progress: as given; for True, a line."""
    if isinstance(progress, bool):
        return ProgressLine() if progress else None
    return progress


def format_progress(progress: StageProgress, *, seconds_since: float = 0.0) -> str:
    """`solve 12 s: step 7.81 ms, at least 7.70 ms, gap 1.41 %`.

    Args:
        progress: What was said last.
        seconds_since: How long ago.
    """
    text = f"{progress.stage} {progress.seconds + seconds_since:.0f} s"
    step, least = progress.step_seconds, progress.least_step_seconds
    if least is None:
        return f"{text}: {progress.note}" if progress.note else text
    if step is None:
        return f"{text}: no plan yet, at least {format_seconds(least)} a step"
    gap = max(0.0, (step - least) / step) if step else 0.0
    return (
        f"{text}: step {format_seconds(step)}, at least {format_seconds(least)},"
        f" gap {format_percent(gap)}"
    )
