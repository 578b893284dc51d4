"""What the commands of `autoshard` share: readable errors, the width option, examples."""

from __future__ import annotations

import errno
import io
import math
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, TypeVar

import click

from autoshard.errors import AutoshardError
from solvers.errors import SolverError

EXIT_ERROR = 2
EXIT_SIGNAL = 128
"""A command that a signal stopped before it was done ends with this and the signal's number."""

MOST_COLUMNS = 10_000

F = TypeVar("F", bound=Callable[..., Any])


class Command(click.Command):
    """A command whose errors are one readable message on stderr and exit code 2."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.append(
            click.Option(["--debug"], is_flag=True, help="Show the traceback of an error.")
        )

    def invoke(self, ctx: click.Context) -> Any:
        is_debug = ctx.params.pop("debug")
        try:
            with _stopped_by_sigterm():
                return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            number = stop.number if isinstance(stop, Stopped) else signal.SIGINT
            click.echo(f"error: stopped by {number.name} before it was done", err=True)
            return ctx.exit(EXIT_SIGNAL + number)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except Exception as error:
            if is_debug:
                click.echo(traceback.format_exc(), err=True)
            click.echo(f"error: {_message(error)}", err=True)
        return ctx.exit(EXIT_ERROR)


_SECONDS_TO_RETURN = 0.05
"""From a callback in which a signal was ignored: sent there, it would be ignored again."""


class Stopped(KeyboardInterrupt):
    """A signal asked the command to end; where a search is running it gives its best so far."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.number = number


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


class Seconds(click.FloatRange):
    """A time limit: above 0, and finite."""

    name = "seconds"

    def __init__(self) -> None:
        super().__init__(min=0, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Reads the number; fails where the limit would never be reached."""
        return _finite(self, super().convert(value, param, ctx), param, ctx)


class Fraction(click.FloatRange):
    """A gap: at least 0, and finite."""

    name = "fraction"

    def __init__(self) -> None:
        super().__init__(min=0)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Reads the number; fails where it is none."""
        return _finite(self, super().convert(value, param, ctx), param, ctx)


def _finite(
    kind: click.FloatRange, read: float, param: click.Parameter | None, ctx: click.Context | None
) -> float:
    if not math.isfinite(read):
        kind.fail(f"{read} is not a finite number.", param, ctx)
    return read


def _message(error: Exception) -> str:
    from cost_models.errors import CostModelError  # `autoshard solve` starts sooner without

    if isinstance(error, (AutoshardError, CostModelError, SolverError)):
        return str(error)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"what is printed cannot be written: {error.strerror}\n"
            "  fix: make room where standard output goes"
        )
    if isinstance(error, MemoryError):
        return (
            "the memory that the process may take ran out\n"
            "  fix: raise its limit (ulimit -v), or plan a smaller program"
        )
    return (
        f"unexpected {type(error).__name__}: {error}\n"
        "  fix: --debug shows where; if that is not in your code, report it"
    )


def width_option(command: F) -> F:
    """Adds --width."""
    return click.option(
        "--width",
        type=click.IntRange(min=20, max=MOST_COLUMNS),
        help="Columns of the text; the terminal's width, or 100 in a pipe, if not given.",
    )(command)


def example(*arguments: str) -> str:
    """Makes an epilog of commands, one a line, that click does not fill up."""
    return "\n".join(["\b", "Example:", *(f"  autoshard {words}" for words in arguments)])


def wide_stdout() -> TextIO:
    """Returns the standard output; letters it cannot show become question marks."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    return sys.stdout
