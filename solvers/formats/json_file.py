"""JSON files, plain or gzip-compressed: bytes to a document and back."""

from __future__ import annotations

import contextlib
import errno
import gzip
import json
import os
from pathlib import Path
from typing import Any

from solvers.collector import no_collections
from solvers.errors import FormatError
from solvers.files import read_file, write_file
from solvers.formats import integer_lists

MOST_BYTES = 1 << 29
"""Bytes of JSON that are read; the largest instance of the contest has 93 million."""

LARGE = 1 << 20
"""Bytes from which long lists of integers are worth the loop compiled to read them."""

MEMORY_PER_BYTE = 8
"""Bytes of memory a byte of JSON may need while it is read (lists of small integers: up to 8)."""


def read_document(path: str | Path, *, until: float | None = None) -> Any:
    """Reads a JSON document; long lists of integers in a large one are `IntegerLists`.

    Args:
        path: A regular file with JSON, compressed or not (told apart by content).
        until: `time.monotonic` value by which it must be read; None for no limit.

    Raises:
        FormatError: It cannot be unpacked, is not JSON, is too large, or needs more memory than
            there is.
        TimeoutError: Time is up.
        OSError: It cannot be read.
    """
    where = str(path)
    try:
        raw = _content(Path(path), until)
        load = integer_lists.loads if len(raw) >= LARGE else json.loads
        with no_collections():
            return load(raw)  # NaN passes here and is refused with its path
    except MemoryError as error:
        raise _too_large(where, "more memory than there is") from error
    except (ValueError, RecursionError) as error:
        raise FormatError(
            f"is not JSON: {error}", where=where, fix="give a .json or .json.gz file"
        ) from error


def write_document(path: str | Path, document: Any) -> None:
    """Writes a JSON document whole or not at all, compressed where the name ends in ``.gz``.

    Raises:
        OSError: It cannot be written.
    """
    path = Path(path)
    text = (json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n").encode()
    if path.suffix == ".gz":
        text = gzip.compress(text, compresslevel=6, mtime=0)
    write_file(path, text)


def _content(path: Path, until: float | None) -> bytes:
    there = available_bytes()
    most = MOST_BYTES if there is None else min(MOST_BYTES, there // MEMORY_PER_BYTE)
    try:
        return read_file(path, most_bytes=most, until=until)
    except OSError as error:
        where = str(path)
        if error.errno == errno.EFBIG and most < MOST_BYTES:
            assert there is not None
            raise _too_large(where, f"more than the {there >> 20} MiB there are") from error
        if error.errno == errno.EFBIG:
            raise FormatError(
                f"is too large: {error.strerror}", where=where, fix="give a smaller one"
            ) from error
        if error.errno == errno.EBADMSG:
            raise FormatError(
                f"{error.strerror}", where=where, fix="fetch the file again"
            ) from error
        raise


def _too_large(where: str, needed: str) -> FormatError:
    return FormatError(
        f"is too large: reading it needs {needed}",
        where=where,
        fix="use a machine with more memory",
    )


def available_bytes() -> int | None:
    """Returns the memory this process may still take; None where the system does not say."""
    found: list[int] = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvail")]
    with contextlib.suppress(OSError, ValueError):
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        found.append(limit - int(Path("/sys/fs/cgroup/memory.current").read_text()))
    if not found and hasattr(os, "sysconf") and "SC_AVPHYS_PAGES" in os.sysconf_names:
        found.append(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(found, default=None)
