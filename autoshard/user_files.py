"""Files that the user named: what cannot be read or written is told with what to do."""

from __future__ import annotations

import os

from autoshard.errors import AutoshardError, InputError
from autoshard.files import MOST_BYTES, read_file, require_writable, write_file

_WRITABLE = "name a file in a folder that exists and that you may write to"


def read_or_refuse(
    path: str | os.PathLike[str],
    what: str,
    fix: str,
    refusal: type[AutoshardError] = InputError,
    *,
    most_bytes: int = MOST_BYTES,
) -> bytes:
    """The content of a file, as `read_file` gives it.

    Args:
        path: The file.
        what: It is: `the module`.
        fix: What to do where it cannot be read.
        refusal: What is raised then.
        most_bytes: Limit of the content.
    """
    try:
        return read_file(path, most_bytes=most_bytes)
    except OSError as error:
        raise refusal(
            f"{what} cannot be read: {error.strerror or error}", where=os.fspath(path), fix=fix
        ) from error


def write_or_refuse(
    path: str | os.PathLike[str],
    content: bytes,
    what: str,
    refusal: type[AutoshardError] = InputError,
) -> None:
    """Write a file, as `write_file` does.

    Args:
        path: The file.
        content: Of it.
        what: Is written: `the page`.
        refusal: What is raised where it cannot be written.
    """
    try:
        write_file(path, content)
    except OSError as error:
        raise refusal(
            f"{what} cannot be written: {error.strerror or error}",
            where=os.fspath(path),
            fix=_WRITABLE,
        ) from error


def refuse_unwritable(path: str | os.PathLike[str], option: str) -> None:
    """Refuse, before any work is done for it, a file that could not be written after it.

    Raises:
        InputError: Names the option that the file was given with.
    """
    try:
        require_writable(path)
    except OSError as error:
        raise InputError(
            f"the file cannot be written: {error.strerror or error}",
            where=f"{option} {os.fspath(path)}",
            fix=_WRITABLE,
        ) from error
