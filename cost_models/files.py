"""Files: read within limits, written whole or not at all.

`solvers`, `cost_models` and `autoshard` each stand alone, so each has this module; a test holds
the three texts equal. Whatever goes wrong is an `OSError` whose `strerror` says it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gzip
import os
import secrets
import stat
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

MOST_BYTES = 1 << 28
"""Bytes of a file, unpacked, that are read where nobody says how many."""

_PIECE = 1 << 20
_GZIP_MAGIC = b"\x1f\x8b"
_DRAFT_PREFIX, _DRAFT_SUFFIX = ".autoshard-", ".tmp"
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def read_file(
    path: str | os.PathLike[str], *, most_bytes: int = MOST_BYTES, until: float | None = None
) -> bytes:
    """Returns the content of a regular file, unpacked if it is compressed with gzip.

    Args:
        path: The file.
        most_bytes: Limit of the content; no more of it is ever held.
        until: `time.monotonic` value to be done by; None for no limit.

    Raises:
        TimeoutError: Time is up.
        OSError: It is no regular file, holds more, is damaged, or cannot be read.
    """
    # Opening a pipe waits for a writer unless told not to.
    handle = _open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    with open(handle, "rb") as file:
        _require_regular(os.fstat(handle).st_mode)
        is_packed = file.peek(len(_GZIP_MAGIC)).startswith(_GZIP_MAGIC)
        source = gzip.GzipFile(fileobj=file) if is_packed else file
        pieces: list[bytes] = []
        size = 0
        try:
            while piece := source.read(_PIECE):
                size += len(piece)
                if size > most_bytes:
                    raise OSError(errno.EFBIG, f"it holds more than {most_bytes:,} bytes")
                if until is not None and time.monotonic() > until:
                    raise TimeoutError(errno.ETIMEDOUT, "time was up before all of it was read")
                pieces.append(piece)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise OSError(errno.EBADMSG, f"it cannot be unpacked: {error}") from error
    return b"".join(pieces)


def write_file(path: str | os.PathLike[str], content: bytes) -> None:
    """Writes a draft beside a file; the draft then takes the file's name.

    Until then a file of that name stays as it was, and its mode is kept. A link is followed. Drafts
    that killed processes left in the folder are removed.

    Raises:
        OSError: It cannot be written; nothing is left behind.
    """
    target = Path(os.path.realpath(path))
    mode = _mode_of(target)
    _sweep(target.parent)
    with _draft_in(target.parent) as (draft, handle):
        left = memoryview(content)
        while left:
            left = left[os.write(handle, left) :]
        if mode is not None:
            os.fchmod(handle, mode)
        os.fsync(handle)
        draft.replace(target)
    _sync_folder(target.parent)


def require_writable(path: str | os.PathLike[str]) -> None:
    """Raises the OSError that `write_file` would raise, unless the disk fills up in between."""
    target = Path(os.path.realpath(path))
    _mode_of(target)
    with _draft_in(target.parent):
        pass


def _open(path: str | os.PathLike[str], flags: int, mode: int = 0o666) -> int:
    try:
        return os.open(path, flags | os.O_CLOEXEC, mode)
    except ValueError as error:  # a NUL in the name
        raise OSError(errno.EINVAL, f"that is no name of a file: {error}") from error


def _require_regular(mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "something else")
        raise OSError(errno.EINVAL, f"it is {kind}, not a regular file")


def _mode_of(target: Path) -> int | None:
    """Returns the mode of a file that may be replaced; None where there is none."""
    try:
        mode = os.lstat(target).st_mode
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise OSError(errno.EINVAL, f"that is no name of a file: {error}") from error
    _require_regular(mode)
    return stat.S_IMODE(mode)


@contextlib.contextmanager
def _draft_in(folder: Path) -> Iterator[tuple[Path, int]]:
    """Makes a file that this process holds locked, and removes it unless it was renamed."""
    while True:
        draft = folder / f"{_DRAFT_PREFIX}{secrets.token_hex(8)}{_DRAFT_SUFFIX}"
        handle = _open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW)
        _lock(handle)
        if os.fstat(handle).st_nlink:
            break
        os.close(handle)  # another process took it for one left behind, before it was locked
    try:
        yield draft, handle
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()
        os.close(handle)


def _lock(handle: int) -> bool:
    """Returns whether the file is now locked by this process; false where nothing can be locked."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _sweep(folder: Path) -> None:
    """Removes drafts that no process holds locked: the system unlocks those of a killed one."""
    with contextlib.suppress(OSError):
        for draft in folder.glob(f"{_DRAFT_PREFIX}*{_DRAFT_SUFFIX}"):
            with contextlib.suppress(OSError):
                _remove_unlocked(draft)


def _remove_unlocked(draft: Path) -> None:
    handle = _open(draft, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        is_own = os.fstat(handle).st_uid == os.geteuid()
        if is_own and _lock(handle):
            draft.unlink()
    finally:
        os.close(handle)


def _sync_folder(folder: Path) -> None:
    """Makes the new name last through a loss of power, where the system can."""
    with contextlib.suppress(OSError):
        handle = _open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
