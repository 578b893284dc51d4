"""One point of a sweep from start to row: skip it, or plan it in a process of its own."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from enum import Enum
from pathlib import Path
from typing import Any

from experiments.results_table import provenance
from experiments.sweeps.folder import SweepFolder
from experiments.sweeps.point import Point
from experiments.workloads import WORKLOADS

ROOT = Path(__file__).resolve().parents[2]
MEASURE = "experiments.sweeps.measure"


class Again(Enum):
    """Which finished points are run once more.

    Attributes:
        none: None of them.
        failed: Those whose row is an error.
        stale: Those of another commit, and of a tree with changes that are in no commit.
        all: Every one.
    """

    none = "none"
    failed = "failed"
    stale = "stale"
    all = "all"

    def wants(self, row: dict[str, Any], commit: str) -> bool:
        """Whether a point with this row is run once more."""
        if self is Again.stale:
            return bool(row["commit"] != commit or commit.endswith("-dirty"))
        return self is Again.all or (self is Again.failed and row["status"] == "failed")


def run_point(
    point: Point,
    folder: SweepFolder,
    *,
    again: Again = Again.none,
    limit_seconds: float | None = None,
) -> str:
    """Bring a point's row into the table, unless it is there or another process is at it.

    Args:
        point: What to plan.
        folder: Of the sweep.
        again: Which finished points are run once more.
        limit_seconds: When planning is given up; the row then says so.

    Returns:
        A line on what was done.
    """
    identity, origin = point.identity, _origin()
    with folder.claim(identity) as held:
        if not held:
            return f"{identity} left alone: another process is at it"
        before = folder.finished(identity)
        if before is not None and not again.wants(before, origin["commit"]):
            was = "" if before["commit"] == origin["commit"] else f", by {before['commit']}"
            folder.merge()
            return f"{identity} was there: {before['status']}{was}"
        start = time.perf_counter()
        found = measure_in_own_process(point, limit_seconds)
        seconds = time.perf_counter() - start
        row = {**asked_columns(point), **found, **origin}
        folder.write(identity, point.asked(), row)
    folder.merge()
    what = f"{found['status']}: {found['error']}" if "error" in found else found["status"]
    return f"{identity} took {seconds:.1f} s: {what}"


def measure_in_own_process(
    point: Point, limit_seconds: float | None = None, module: str = MEASURE
) -> dict[str, Any]:
    """What planning a point found; whatever happens to its process is a finding too.

    The process sees no accelerator: planning needs none, and others may want its memory.

    Args:
        point: What to plan.
        limit_seconds: When the process is ended; None for never.
        module: What runs there: it reads the point as JSON from its standard input, and the last
            line it prints is what it found, as JSON.

    Returns:
        What was found, by column of the table; `status` is always there, `error` where it failed.
    """
    environment = {**os.environ, "PYTHONPATH": python_path(), "JAX_PLATFORMS": "cpu"}
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,  # stays open: when this process is gone, so is that one
            stdout=output,
            stderr=errors,
            env=environment,
        )
        assert process.stdin is not None
        try:
            process.stdin.write(f"{point.to_json()}\n".encode())
            process.stdin.flush()
            code = process.wait(limit_seconds)
        except subprocess.TimeoutExpired:
            return _failure(f"took longer than {limit_seconds:g} s")
        except BrokenPipeError:
            code = process.wait()
        finally:
            process.kill()
            process.wait()
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        for file in (output, errors):
            file.seek(0)
        lines = output.read().decode(errors="replace").splitlines()
        last_words = errors.read().decode(errors="replace").strip().splitlines()[-1:]
    if code == 0 and lines:
        found: dict[str, Any] = json.loads(lines[-1])
        return found
    if code < 0:
        return _failure(f"its process was ended by {signal.Signals(-code).name}")
    return _failure(": ".join([f"its process ended with code {code}", *last_words]))


def asked_columns(point: Point) -> dict[str, Any]:
    """What was asked, by column of the table."""
    preset = WORKLOADS[point.workload].config
    changed = [f"{k}={size}" for k, size in point.sizes.items() if size != getattr(preset, k)]
    return {**point.asked(), "sizes": " ".join(changed)}


def _failure(error: str) -> dict[str, Any]:
    return {"status": "failed", "error": error}


def _origin() -> dict[str, str]:
    """Where a row made now comes from, by column of the table."""
    found = provenance()
    found.pop("versions")
    names = ("autoshard", "jax", "jaxlib", "ortools")
    return {**found, **{name: importlib.metadata.version(name) for name in names}}


def python_path() -> str:
    """`PYTHONPATH` for a process that imports this package."""
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join([str(ROOT), *(path for path in paths if path not in ("", str(ROOT)))])
