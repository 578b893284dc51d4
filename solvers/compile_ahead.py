"""Compiles loops in a process of its own, the first needed first, while other work goes on.

Compiling holds Python's lock: in a thread it would stall all lanes for many seconds. It happens
once on a machine, as a rule; what is compiled is then read from a folder.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import llvmlite.binding as llvm  # type: ignore[import-untyped]
import numba

from solvers.child_environment import child_environment
from solvers.kernels import ascend

WALK, PRICED_BOUND, BOUND, REGIONS = "walks", "priced bounds", "bounds", "regions"
"""Stages, in the order they are needed; `solvers.compile_kernels` says what is in them."""

POLL_SECONDS = 0.02
_ENDING_SECONDS = 5.0


class Compiler:
    """The process that compiles, and what it has done so far.

    Args:
        is_needed: Whether anything is left to compile.
    """

    def __init__(self, *, is_needed: bool) -> None:
        self._lock = threading.Lock()
        self._is_needed = is_needed
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._done: dict[str, float] = {}
        self._began = 0.0
        self._has_ended = threading.Event()

    def start(self) -> None:
        """Starts the process where it is needed and was not started yet."""
        with self._lock:
            if not self._is_needed or self._process is not None or self._has_ended.is_set():
                return
            self._began = time.monotonic()
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "solvers.compile_kernels"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    env=child_environment(),
                    text=True,
                    start_new_session=True,  # an interrupt at the terminal is not for it
                )
            except OSError:
                self._has_ended.set()
                return
            atexit.register(self.close)
            self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
            self._reader.start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                self._done[line.strip()] = time.monotonic() - self._began
        process.wait()
        self._has_ended.set()

    def close(self) -> None:
        """Ends the process; what it compiled so far is kept."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            if self._process.stdin is not None:
                self._process.stdin.close()
        if self._reader is not None:
            self._reader.join(_ENDING_SECONDS)  # it closes what it read from

    def wait_for(self, stage: str, is_over: Callable[[], bool]) -> str | None:
        """Waits until a stage is compiled, or must be here, or the wait is over.

        Returns:
            What happened, for the log; None where nothing did.
        """
        if not self._is_needed:
            return None
        self.start()
        while stage not in self._done and not self._has_ended.is_set() and not is_over():
            self._has_ended.wait(POLL_SECONDS)
        if stage in self._done:
            return f"compiled in a process of its own: {stage}, after {self._done[stage]:.1f} s"
        if self._has_ended.is_set():
            return f"the process that compiles ended early: {stage} is compiled here"
        return None


def mark() -> Path:
    """Returns the file that says all stages are compiled: as the sources are, for this machine.

    Numba compiles anew for another version of itself, another processor, or a changed source.
    """
    sources = sorted(Path(__file__).parent.glob("**/*.py"))
    stats = [(path.name, path.stat().st_mtime_ns, path.stat().st_size) for path in sources]
    machine = (llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())
    key = repr((numba.__version__, sys.version, machine, stats))
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    folder = ascend.stats.cache_path  # type: ignore[attr-defined]
    return Path(folder) / f"kernels-{digest}.compiled"


@functools.cache
def compiler() -> Compiler:
    """Returns the one compiler of this process."""
    return Compiler(is_needed=not mark().exists())
