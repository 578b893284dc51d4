"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from autoshard.errors import AutoshardError, InputError


def write_whole(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file under another name beside it, which then takes its name.

    Whatever goes wrong before, a file of that name is left as it was. A link is followed.

    Raises:
        OSError: It cannot be written.
    """
    target = Path(os.path.realpath(path))
    draft = target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        with draft.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


def write_or_refuse(
    path: str | os.PathLike[str],
    content: bytes,
    what: str,
    refusal: type[AutoshardError] = InputError,
) -> None:
    """Write a file that the user named, as `write_whole` does.

    Args:
        path: The file.
        content: Of it.
        what: Is written: `the page`.
        refusal: What is raised where it cannot be written, with what to do.
    """
    try:
        write_whole(path, content)
    except OSError as error:
        raise refusal(
            f"{what} cannot be written: {error.strerror or error}",
            where=os.fspath(path),
            fix="name a file in a folder that exists and that you may write to",
        ) from error
