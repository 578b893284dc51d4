"""What the commands of `autoshard` share: readable errors, the width option, examples."""

from __future__ import annotations

import contextlib
import errno
import io
import math
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO, TypeVar

import click

from autoshard.commands.signals import ended_by_signals
from autoshard.errors import AutoshardError
from solvers.errors import SolverError

EXIT_ERROR = 2
MOST_COLUMNS = 10_000

F = TypeVar("F", bound=Callable[..., Any])


def _seconds_since_start() -> float:
    """Wall time since the process started, as far as the system tells; at most 10."""
    seconds = time.process_time()
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        seconds = uptime - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return min(max(0.0, seconds), 10.0)


IS_OWN_PROCESS = Path(sys.argv[0]).stem == "autoshard"  # not run by a test or another program
_STARTED = time.monotonic() - _seconds_since_start()


def seconds_spent() -> float:
    """Wall time that the user waited for a command of its own process so far, imports included."""
    return time.monotonic() - _STARTED if IS_OWN_PROCESS else 0.0


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
            with ended_by_signals(ctx):
                return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except Exception as error:
            if is_debug:
                click.echo(traceback.format_exc(), err=True)
            click.echo(f"error: {_message(error)}", err=True)
        return ctx.exit(EXIT_ERROR)


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
