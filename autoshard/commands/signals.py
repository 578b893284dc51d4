"""Signals that end a command: it says which, and exits with the code of the signal."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

EXIT_SIGNAL = 128
"""A command that a signal stopped before it was done ends with this and the signal's number."""


class Commands(click.Group):
    """Commands that a signal ends with its name, while they are imported too."""

    def invoke(self, ctx: click.Context) -> Any:
        with ended_by_signals(ctx):
            return super().invoke(ctx)


_SECONDS_TO_RETURN = 0.05
"""From a callback in which a signal was ignored: sent there, it would be ignored again."""


class Stopped(KeyboardInterrupt):
    """A signal asked the command to end; where a search is running it gives its best so far."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.number = number


@contextmanager
def ended_while_importing() -> Iterator[None]:
    """Ends the process at once: extension modules crash on what is raised as they are imported."""
    numbers = [
        number
        for number in (signal.SIGINT, signal.SIGTERM)
        if threading.current_thread() is threading.main_thread()
        and signal.getsignal(number) is not signal.SIG_IGN
    ]

    def end(number: int, frame: object) -> None:
        del frame
        os.write(2, _told(signal.Signals(number)).encode())
        os._exit(EXIT_SIGNAL + number)

    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _told(number: signal.Signals) -> str:
    return f"error: stopped by {number.name} before it was done\n"


@contextmanager
def ended_by_signals(ctx: click.Context) -> Iterator[None]:
    """Tells of SIGINT and SIGTERM in one line, and exits with the code of the signal."""
    try:
        with _stopped_by_sigterm():
            yield
    except KeyboardInterrupt as stop:
        number = stop.number if isinstance(stop, Stopped) else signal.SIGINT
        click.echo(_told(number), err=True, nl=False)
        ctx.exit(EXIT_SIGNAL + number)


@contextmanager
def _stopped_by_sigterm() -> Iterator[None]:
    """Treats SIGTERM as the interrupt that Ctrl-C is; one that was ignored is sent again.

    Python ignores what is raised in callbacks of its garbage collector, of which JAX has one.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: object) -> None:
        del frame
        raise Stopped(signal.Signals(number))

    def send_again(ignored: sys.UnraisableHookArgs) -> None:
        error = ignored.exc_value
        if not isinstance(error, KeyboardInterrupt):
            told(ignored)
            return
        number = error.number if isinstance(error, Stopped) else signal.SIGINT
        threading.Timer(_SECONDS_TO_RETURN, os.kill, (os.getpid(), number)).start()

    before = signal.signal(signal.SIGTERM, stop)
    told, sys.unraisablehook = sys.unraisablehook, send_again
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        sys.unraisablehook = told
