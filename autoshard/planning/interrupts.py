"""Interrupts that a step of planning hears of before one breaks it off."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_SECONDS_TO_END = 0.5
"""In which a step ends by itself once it was told. A choice; what is begun again costs more."""


class Overdue(KeyboardInterrupt):
    """A step went on for long after it was told of an interrupt."""


@contextmanager
def told_first(tell: Callable[[], bool]) -> Iterator[None]:
    """Signals that would raise in a block are told to it instead; `Overdue` is raised later.

    Where the calling thread gets no signals, or none of them raises, nothing changes. A second
    signal raises what it always does.

    Args:
        tell: Told of the first signal; says whether the block ends by itself.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    told = _Told(tell)
    before = {
        number: handler
        for number in (signal.SIGINT, signal.SIGTERM)
        if callable(handler := signal.getsignal(number))
    }
    try:
        for number, handler in before.items():
            signal.signal(number, told.instead_of(handler))
        yield
    finally:
        told.forget()  # after which nothing raises that the handlers would not
        for number, handler in before.items():
            signal.signal(number, handler)


class _Told:
    def __init__(self, tell: Callable[[], bool]) -> None:
        self._tell = tell
        self._timer: threading.Timer | None = None
        self._is_overdue = self._is_over = False

    def instead_of(
        self, handler: Callable[[int, FrameType | None], object]
    ) -> Callable[[int, FrameType | None], object]:
        def hear(number: int, frame: FrameType | None) -> None:
            if self._is_overdue:
                self._is_overdue = False
                if self._is_over:
                    return
                raise Overdue
            if self._timer is not None or not self._tell():
                handler(number, frame)
                return
            self._timer = threading.Timer(_SECONDS_TO_END, self._send, (number,))
            self._timer.daemon = True
            self._timer.start()

        return hear

    def _send(self, number: int) -> None:
        self._is_overdue = True
        os.kill(os.getpid(), number)

    def forget(self) -> None:
        """No signal is sent any more, and one that was sent raises nothing."""
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()
