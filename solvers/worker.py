"""The child of `solvers.own_process`: takes one problem at a time, tells what it finds.

Messages are pickled pairs of a kind and its content. In: "solve", then "best" and "bound" as other
lanes find them. Out: "best" and "bound", at last "answer" or "error". The end of the input ends the
process, so that it never outlives its parent.
"""

from __future__ import annotations

import os
import pickle
import queue
import sys
import threading
import time
from typing import Any, BinaryIO

import scipy.optimize  # noqa: F401 (early, while the parent reduces the problem)

from solvers.engines.protocol import Engine, Request
from solvers.errors import SolverError
from solvers.incumbent import Incumbent


class _Channel:
    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def send(self, kind: str, content: Any) -> None:
        with self._lock:
            pickle.dump((kind, content), self._stream, protocol=pickle.HIGHEST_PROTOCOL)
            self._stream.flush()


class _Inbox(threading.Thread):
    """Reads messages; those for the running solve go to its incumbent, tasks to a queue."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__(daemon=True)
        self.tasks: queue.Queue[Any] = queue.Queue()
        self.incumbent: Incumbent | None = None
        self._stream = stream

    def run(self) -> None:
        try:
            while True:
                kind, content = pickle.load(self._stream)
                if kind == "solve":
                    self.tasks.put(content)
                elif self.incumbent is not None and kind == "best":
                    self.incumbent.offer(*content, source="other lane")
                elif self.incumbent is not None:
                    self.incumbent.offer_bound(content, source="other lane")
        finally:
            # The parent is gone, perhaps in the middle of a message; the library at work cannot
            # be asked to stop.
            os._exit(0)


def _incumbent(channel: _Channel, settings: dict[str, Any]) -> Incumbent:
    seconds = settings["seconds"]
    told: list[int | None] = [None]

    def on_change(source: str, cost: int | None, bound: int) -> None:
        if source == "other lane":
            return
        if cost is not None and cost != told[0]:
            told[0] = cost
            channel.send("best", (incumbent.best()[1], cost, source))
        channel.send("bound", (bound, source))

    incumbent = Incumbent(
        deadline=None if seconds is None else time.monotonic() + seconds,
        seed=settings["seed"],
        relative_gap=settings["relative_gap"],
        lower_bound=settings["lower_bound"],
        on_change=on_change,
    )
    return incumbent


def main() -> None:
    """Serves until the input ends."""
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not get between the messages
    channel = _Channel(output)
    inbox = _Inbox(sys.stdin.buffer)
    inbox.start()
    while True:
        engine, problem, settings, (cost, choices), hints = inbox.tasks.get()
        incumbent = _incumbent(channel, settings)
        if cost is not None and choices is not None:
            incumbent.offer(choices, cost, source="other lane")
        inbox.incumbent = incumbent
        _solve(channel, engine, problem, Request.of(incumbent, hints))


def _solve(channel: _Channel, engine: Engine, problem: Any, request: Request) -> None:
    try:
        answer = engine.solve(problem, request)
    except SolverError as error:
        channel.send("error", (error.what, error.where, error.fix))
    except MemoryError:
        channel.send("error", ("ran out of memory", f"engine {engine.name}", ""))
    else:
        channel.send("answer", answer)


if __name__ == "__main__":
    main()
