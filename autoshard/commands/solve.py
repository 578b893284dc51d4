"""The `autoshard solve` command: solves a problem file, prints the choices."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click

from autoshard.commands.command import (
    IS_OWN_PROCESS,
    Command,
    Fraction,
    Seconds,
    example,
    seconds_spent,
)
from autoshard.errors import InputError
from solvers import Progress, Result, SolverError, Status, solve
from solvers.formats import read_any

EXIT_NO_SOLUTION = 1

SECONDS_BETWEEN_LINES = 1.0
"""Progress is told at least this far apart, but for the first answer."""

_MOST_ENDING_SECONDS = 0.4  # to write the answer and end the process in
_ENDING_SHARE = 0.01  # of the time limit, if that is less
_WATCH = "watch"  # the name of a thread
_LATE_SECONDS = 0.25  # by which a step that nothing can stop may miss the limit
_AFTER_SIGNAL_SECONDS = 1.0  # the same after a signal

F = TypeVar("F", bound=Callable[..., Any])


def solve_options(command: F) -> F:
    """Adds the arguments and options of the command to the function that runs it."""
    for add in reversed(
        (
            click.argument("instance", type=click.Path(path_type=Path)),
            click.option(
                "--timeout",
                type=Seconds(),
                default=60.0,
                show_default=True,
                help="Seconds in all, starting and reading included.",
            ),
            click.option(
                "--seed", type=int, default=0, show_default=True, help="One seed, one cost."
            ),
            click.option(
                "--gap",
                type=Fraction(),
                default=0.0,
                show_default=True,
                help="Stop once the cost is proven this close to the best, as a fraction.",
            ),
            click.option("--solver", default="auto", show_default=True, help="Name of the solver."),
        )
    ):
        command = add(command)
    return command


@click.command("solve", cls=Command, epilog=example("solve instance.json.gz --timeout 60 --seed 0"))
@solve_options
def solve_command(instance: Path, timeout: float, seed: int, gap: float, solver: str) -> None:
    """Solve INSTANCE and print one choice per node.

    INSTANCE is an IOPDDL file or one in the format of this package, .json or .json.gz. Progress
    goes to the standard error output; the last line of the standard output is the list of choices,
    as in [0, 2, 1]. Ctrl-C and SIGTERM end the search with the best choices so far.

    Exit code 1: no choices were found; 2: an error. Neither prints a list.
    """
    started = time.monotonic() - seconds_spent()
    ending = min(_MOST_ENDING_SECONDS, _ENDING_SHARE * timeout)
    with _stop_on_signals() as stop:
        lines = _ProgressLines()
        last_word = threading.Lock()
        if IS_OWN_PROCESS:
            late = started + timeout + _LATE_SECONDS
            watch = threading.Thread(
                target=_end_late, args=(late, stop, lines, last_word), daemon=True, name=_WATCH
            )
            watch.start()
        result = _solve(instance, started, timeout - ending, seed, gap, solver, stop, lines)
        last_word.acquire()  # and never released: the process ends
    click.echo(_summary(result), err=True)
    if result.choices is None:
        click.echo(f"error: {result.advice}", err=True)
        _end(EXIT_NO_SOLUTION)
        sys.exit(EXIT_NO_SOLUTION)
    click.echo(str(list(result.choices)))
    _end(0)


def _end(code: int) -> None:
    """Ends the process at once if a lane was left behind in a library that would abort it."""
    left = [thread for thread in threading.enumerate() if thread.name != _WATCH]
    if IS_OWN_PROCESS and len(left) > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _end_late(
    late: float, stop: threading.Event, lines: _ProgressLines, last_word: threading.Lock
) -> None:
    """Ends the process with what is known when time is up, whatever step it is in by then."""
    stop.wait(max(0.0, late - time.monotonic()))
    time.sleep(max(0.0, min(_AFTER_SIGNAL_SECONDS, late - time.monotonic())))
    last_word.acquire()
    latest = lines.latest
    stage = "start" if latest is None else latest.stage
    click.echo(f"status: stopped in the middle of a step: {stage}", err=True)
    if latest is None or latest.choices is None:
        click.echo("error: Nothing allowed was found by then: raise the time limit.", err=True)
    else:
        click.echo(str(list(latest.choices)))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(EXIT_NO_SOLUTION if latest is None or latest.choices is None else 0)


def _solve(
    instance: Path,
    started: float,
    seconds: float,
    seed: int,
    gap: float,
    solver: str,
    stop: threading.Event,
    lines: _ProgressLines,
) -> Result:
    try:
        try:
            problem = read_any(instance, until=started + seconds)
        except TimeoutError:
            return Result(
                status=Status.NO_SOLUTION,
                choices=None,
                cost=None,
                lower_bound=0,
                log=("time was up before all of the file was read",),
            )
        except OSError as error:
            raise InputError(
                f"cannot be read: {error.strerror or error}",
                where=str(instance),
                fix="name a .json or .json.gz file",
            ) from error
        passed = time.monotonic() - started
        size = f"{problem.num_nodes} nodes, {len(problem.edges)} edges"
        lines.seconds_before = passed
        click.echo(f"{passed:7.1f} s  read {size}", err=True)
        return solve(
            problem,
            engine=solver,
            time_limit_seconds=max(0.0, seconds - passed),
            seed=seed,
            relative_gap=gap,
            progress=lines,
            stop=stop,
        )
    except MemoryError as error:
        raise SolverError(
            "needs more memory than there is",
            where=str(instance),
            fix="use a machine with more memory",
        ) from error


class _ProgressLines:
    """Writes a line now and then; takes the first answer and the last word at once."""

    def __init__(self) -> None:
        self.seconds_before = 0.0
        self.latest: Progress | None = None
        self._told_at = -SECONDS_BETWEEN_LINES
        self._has_cost = False

    def __call__(self, progress: Progress) -> None:
        self.latest = progress
        is_first = progress.cost is not None and not self._has_cost
        if not is_first and progress.seconds - self._told_at < SECONDS_BETWEEN_LINES:
            return
        self._told_at = progress.seconds
        self._has_cost = progress.cost is not None
        click.echo(self._line(progress), err=True)

    def _line(self, progress: Progress) -> str:
        line = f"{progress.seconds + self.seconds_before:7.1f} s  {progress.stage}"
        if progress.cost is not None:
            gap = (progress.cost - progress.lower_bound) / max(1, progress.cost)
            return f"{line}: cost {progress.cost}, bound {progress.lower_bound}, gap {gap:.2%}"
        return f"{line}: bound {progress.lower_bound}" if progress.lower_bound else line


def _summary(result: Result) -> str:
    lines = [*result.log, f"status: {result.status.value}"]
    if result.choices is not None:
        lines.append(
            f"cost {result.cost}, bound {result.lower_bound}, gap {result.gap:.4%}, peak "
            f"{result.peak} at time {result.peak_time}"
        )
    elif result.least_peak is not None:
        lines.append(
            f"smallest peak found: {result.least_peak} at time {result.least_peak_time}; none is "
            f"below {result.least_peak_bound}"
        )
        if result.clashing_times:
            times = ", ".join(map(str, result.clashing_times))
            lines.append(f"the limit cannot be kept together at, or was passed at, times {times}")
    return "\n".join(lines)


@contextlib.contextmanager
def _stop_on_signals() -> Iterator[threading.Event]:
    """Ctrl-C and SIGTERM set an event instead of ending the process."""
    stop = threading.Event()

    def handle(number: int, frame: object) -> None:
        del number, frame
        stop.set()

    before = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(ValueError):  # only the main thread may
            before[number] = signal.signal(number, handle)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
