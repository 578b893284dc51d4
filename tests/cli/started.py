"""Commands that run beside a test, in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
signal.signal(signal.SIGINT, signal.default_int_handler)
"""Shells ignore it for what they run in the background, and what that starts inherits it."""
RUN = "import sys; sys.argv[0] = 'autoshard'; from autoshard.cli import main; main()"


@contextmanager
def started(
    folder: Path, *words: str, code: str = RUN, **environment: str
) -> Iterator[subprocess.Popen[str]]:
    """A command, or other code, that runs in a folder, and is killed at the end of the block."""
    with subprocess.Popen(
        [sys.executable, "-P", "-c", code, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()
