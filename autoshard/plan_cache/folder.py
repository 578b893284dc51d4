"""The folder that plans are kept in: as a call says, else as the environment says, else none."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from autoshard.errors import InputError

VARIABLE = "AUTOSHARD_CACHE"
_NO = frozenset({"", "0", "no", "off", "false"})
_YES = frozenset({"1", "yes", "on", "true"})


def cache_folder(said: bool | str | os.PathLike[str] | None) -> Path | None:
    """Returns the folder that plans are kept in; None where they are not kept.

    Args:
        said: A folder; True for that of the environment variable, else the platform's; False for
            none; None as the variable says: a folder, `1` for the platform's, none where unset.

    Raises:
        InputError: It is something else.
    """
    if said is False:
        return None
    if isinstance(said, (str, os.PathLike)) and os.fspath(said):
        return Path(said).expanduser()
    if said is not None and said is not True:
        raise InputError(
            f"expected a folder, True or False, found {said!r}",
            where=f"cache={said!r}",
            fix='name the folder that plans are kept in, as in cache="plans"',
        )
    variable = os.environ.get(VARIABLE, "").strip()
    if variable.lower() in _NO | _YES:
        is_on = said is True or variable.lower() in _YES
        return default_folder() if is_on else None
    return Path(variable).expanduser()


def default_folder() -> Path:
    """Returns the folder for plans among the platform's caches; it need not exist."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "autoshard" / "plans"
    base = os.environ.get("XDG_CACHE_HOME", "")
    caches = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return caches / "autoshard" / "plans"
