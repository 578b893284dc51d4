"""An engine in a process of its own: it can be stopped at once, whatever library it sits in."""

from __future__ import annotations

import contextlib
import pickle
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any, BinaryIO

from solvers.child_environment import child_environment
from solvers.engines.protocol import Answer, Engine, Request
from solvers.errors import EngineError
from solvers.incumbent import Incumbent
from solvers.problem import Problem

POLL_SECONDS = 0.02
_LATE_SECONDS = 1.0  # by which an engine may miss its own limit before it is given up


class OwnProcess:
    """A process that `solvers.worker` runs in, started at once so that its imports are done early.

    Use as a context manager: the process is gone when the block ends.
    """

    def __init__(self) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "solvers.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=child_environment(),
            start_new_session=True,  # an interrupt at the terminal is for the parent to handle
        )

    def __enter__(self) -> OwnProcess:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the process, whatever it is doing."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def solve(
        self,
        engine: Engine,
        problem: Problem,
        incumbent: Incumbent,
        hints: tuple[tuple[int, ...], ...] = (),
        seconds: float | None = None,
    ) -> Answer | None:
        """Runs an engine there; returns its answer, or None when the incumbent was over first.

        What it finds on the way is offered to the incumbent, what others offer is sent to it.

        Args:
            engine: What runs.
            problem: What it solves.
            incumbent: Of the lanes at work on the problem.
            hints: Choices to start from; they need not be allowed.
            seconds: How long at most, if less than the incumbent has left; a process that takes
                longer is of no further use.

        Raises:
            EngineError: The engine refused, or the process died.
        """
        arrived: list[tuple[str, Any]] = []
        reader = threading.Thread(target=self._read, args=(arrived, incumbent), daemon=True)
        try:
            settings = _settings(incumbent, seconds)
            self._send(("solve", (engine, problem, settings, incumbent.best(), hints)))
            until = None if seconds is None else time.monotonic() + seconds + _LATE_SECONDS
            reader.start()
            told, told_bound = incumbent.best()[0], incumbent.bound()
            while reader.is_alive() and not incumbent.is_over():
                reader.join(POLL_SECONDS)
                if until is not None and time.monotonic() > until:
                    return None
                cost, choices = incumbent.best()
                if cost is not None and (told is None or cost < told):
                    told = cost
                    self._send(("best", (choices, cost)))
                if incumbent.bound() > told_bound:
                    told_bound = incumbent.bound()
                    self._send(("bound", told_bound))
        except OSError as error:
            raise self._died(engine) from error
        self._await_answer(reader, incumbent)
        if not arrived:
            if incumbent.is_over():
                return None
            raise self._died(engine)
        kind, content = arrived[0]
        if kind == "error":
            what, where, fix = content
            raise EngineError(what, where=where, fix=fix)
        answer: Answer = content
        return answer

    def _await_answer(self, reader: threading.Thread, incumbent: Incumbent) -> None:
        """Gives an engine that has just closed the gap the time to say so."""
        until = time.monotonic() + _LATE_SECONDS
        while reader.is_alive() and time.monotonic() < until:
            if incumbent.is_stopped() or incumbent.seconds_left() == 0:
                return
            reader.join(POLL_SECONDS)

    def _send(self, message: tuple[str, Any]) -> None:
        stream = self._process.stdin
        assert stream is not None
        pickle.dump(message, stream, protocol=pickle.HIGHEST_PROTOCOL)
        stream.flush()

    def _read(self, arrived: list[tuple[str, Any]], incumbent: Incumbent) -> None:
        stream = self._process.stdout
        assert stream is not None
        with contextlib.suppress(EOFError, OSError, ValueError, pickle.UnpicklingError):
            while not arrived:
                kind, content = _load(stream)
                if kind == "best":
                    choices, cost, source = content
                    incumbent.offer(choices, cost, source=source)
                elif kind == "bound":
                    bound, source = content
                    incumbent.offer_bound(bound, source=source)
                else:
                    arrived.append((kind, content))

    def _died(self, engine: Engine) -> EngineError:
        self._process.kill()
        code = self._process.wait()
        self._errors.seek(0)
        last = self._errors.read().decode(errors="replace").strip().splitlines()[-1:]
        return EngineError(
            f"its process ended with code {code}" + (f": {last[0]}" if last else ""),
            where=f"engine {engine.name}",
            fix="choose another engine, or give the process more memory",
        )


def solve_in_own_process(engine: Engine, problem: Problem, request: Request) -> Answer:
    """Runs an engine in a new process, as long as the request asks for.

    Raises:
        EngineError: The engine refused, or the process died.
    """
    incumbent = request.incumbent
    if incumbent is None:
        incumbent = _RequestIncumbent(request)
    hints = tuple(tuple(int(choice) for choice in hint) for hint in request.hints)
    with OwnProcess() as process:
        answer = process.solve(engine, problem, incumbent, hints)
    if answer is not None:
        return answer
    _, best = incumbent.best()
    return Answer(choices=best, lower_bound=incumbent.bound(), log=("out of time",))


class _RequestIncumbent(Incumbent):
    """An incumbent of one lane that is over when the request is."""

    def __init__(self, request: Request) -> None:
        super().__init__(
            deadline=request.deadline,
            seed=request.seed,
            relative_gap=request.relative_gap,
            lower_bound=request.lower_bound,
        )
        self._request = request

    def is_over(self) -> bool:
        return super().is_over() or self._request.is_over()


def _settings(incumbent: Incumbent, seconds: float | None) -> dict[str, Any]:
    limits = [limit for limit in (incumbent.seconds_left(), seconds) if limit is not None]
    return {
        "seconds": min(limits, default=None),
        "seed": incumbent.seed,
        "relative_gap": incumbent.relative_gap,
        "lower_bound": incumbent.bound(),
    }


def _load(stream: BinaryIO | Any) -> tuple[str, Any]:
    message: tuple[str, Any] = pickle.load(stream)
    return message
