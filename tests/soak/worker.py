"""Programs judged in a process of its own, which may crash, hang or run out of memory.

Processes are forked from one that has imported everything and started nothing. Kernels are compiled
without LLVM's optimisations, as those of all tests.
"""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from tests.soak.judge import Outcome, judge
from tests.soak.program import Program

PROGRAMS_A_PROCESS = 40
SECONDS_A_PROGRAM = 180.0
XLA_FLAGS = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"


def _serve(pipe: Connection) -> None:
    while True:
        try:
            text = pipe.recv()
        except EOFError:
            return
        pipe.send(judge(Program.from_json(text)))


class Worker:
    """Judges one program after another; a new process is begun where one ended, or has done many.

    Args:
        seconds: Most that one program may take.
    """

    def __init__(self, seconds: float = SECONDS_A_PROGRAM) -> None:
        self.seconds = seconds
        self._process: BaseProcess | None = None
        self._pipe: Any = None
        self._served = 0

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def judge(self, program: Program) -> Outcome:
        """As of `judge`; `crashed` and `hung` where the process ended, or did not answer."""
        if self._process is None or self._served >= PROGRAMS_A_PROCESS:
            self._end()
            self._begin()
        self._served += 1
        self._pipe.send(program.to_json())
        try:
            if not self._pipe.poll(self.seconds):
                self._end()
                return Outcome("hung", f"no answer in {self.seconds:.0f} s", "hung")
            found: Outcome = self._pipe.recv()
        except EOFError:
            assert self._process is not None
            self._process.join()
            code = self._process.exitcode
            self._end()
            return Outcome("crashed", f"the process ended with {code}", f"exit code {code}")
        return found

    def _begin(self) -> None:
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        os.environ.setdefault("XLA_FLAGS", XLA_FLAGS)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        self._served = 0

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._pipe.close()
            self._process = None
