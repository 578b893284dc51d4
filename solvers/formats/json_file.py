"""JSON files, plain or gzip-compressed: bytes to a document and back."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import zlib
from pathlib import Path
from typing import Any

from solvers.collector import no_collections
from solvers.errors import FormatError
from solvers.formats import integer_lists

_GZIP_MAGIC = b"\x1f\x8b"
_PIECE = 1 << 22

LARGE = 1 << 20
"""Bytes from which long lists of integers are worth the loop compiled to read them."""

MEMORY_PER_BYTE = 8
"""Bytes of memory a byte of JSON may need while it is read (lists of small integers: up to 8)."""


def read_document(path: str | Path) -> Any:
    """Reads a JSON document; long lists of integers in a large one are `IntegerLists`.

    Args:
        path: A file with JSON, compressed or not (told apart by content).

    Raises:
        FormatError: It cannot be decompressed, is not JSON, or needs more memory than there is.
        OSError: It cannot be read.
    """
    try:
        raw = _content(Path(path))
        load = integer_lists.loads if len(raw) >= LARGE else json.loads
        with no_collections():
            return load(raw)  # NaN passes here and is refused with its path
    except MemoryError as error:
        raise _too_large(str(path), "more memory than there is") from error
    except (ValueError, RecursionError) as error:
        raise FormatError(
            f"is not JSON: {error}", where=str(path), fix="give a .json or .json.gz file"
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
    temporary = path.with_name(path.name + ".tmp")
    try:
        temporary.write_bytes(text)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _content(path: Path) -> bytes:
    with path.open("rb") as file:
        is_compressed = file.read(2) == _GZIP_MAGIC
    pieces: list[bytes] = []
    size = 0
    most = available_bytes()
    with gzip.open(path, "rb") if is_compressed else path.open("rb") as source:
        try:
            while piece := source.read(_PIECE):
                pieces.append(piece)
                size += len(piece)
                if most is not None and size * MEMORY_PER_BYTE > most:
                    raise _too_large(str(path), f"more than the {most >> 20} MiB there are")
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise FormatError(
                f"cannot be decompressed: {error}", where=str(path), fix="fetch the file again"
            ) from error
    return b"".join(pieces)


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
