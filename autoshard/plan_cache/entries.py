"""Plans in a folder, one file each: read, written, listed and removed.

The files are plan files, packed. Several processes and hosts may share the folder: a file appears
whole, under a name that says what is in it, so that whoever writes it writes the same plan.
"""

from __future__ import annotations

import gzip
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

from autoshard.errors import InputError, PlanError
from autoshard.files import require_writable, write_file
from autoshard.plans.plan import PlanData
from autoshard.plans.plan_json import dump_plan, load_plan_data

_SUFFIX = ".plan.json.gz"
_NAME = re.compile(r"(?P<function>[\w.-]{1,60})-(?P<key>[0-9a-f]{64})" + re.escape(_SUFFIX))
_DAY_SECONDS = 86_400


@dataclass(frozen=True, slots=True)
class Entry:
    """A kept plan, as its file tells without being read.

    Args:
        path: The file.
        function: Name of what was planned.
        key: What the plan follows from, in 64 hexadecimal digits.
        num_bytes: Of the file.
        made: Seconds since the epoch when it was written.
    """

    path: Path
    function: str
    key: str
    num_bytes: int
    made: float


@dataclass(frozen=True, slots=True)
class PlanCache:
    """Plans of one folder."""

    folder: Path

    def path(self, function: str, key: str) -> Path:
        name = re.sub(r"[^\w.-]", "_", function)[:60] or "_"
        return self.folder / f"{name}-{key}{_SUFFIX}"

    def require_writable(self) -> None:
        """Makes the folder.

        Raises:
            InputError: It cannot be made or written to.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            require_writable(self.folder / "draft")
        except (OSError, ValueError) as error:  # ValueError: a name with a null character
            raise InputError(
                f"plans cannot be kept: {getattr(error, 'strerror', None) or error}",
                where=f"cache folder {self.folder}",
                fix="name a folder that you may write to, or plan without: cache=False",
            ) from error

    def read(self, path: Path) -> PlanData | None:
        """Returns the plan of a file; None where there is none.

        Raises:
            PlanError: The file is damaged.
        """
        return load_plan_data(path) if path.exists() else None

    def keep(self, path: Path, data: PlanData) -> None:
        """Writes a plan.

        Raises:
            OSError: It cannot be written.
            PlanError: The plan breaks a rule of plan files.
        """
        # Without a time in its header: equal plans are equal files.
        write_file(path, gzip.compress(dump_plan(data).encode(), mtime=0))

    def entries(self) -> tuple[Entry, ...]:
        """Returns all kept plans, the newest first; other files are left alone."""
        found = []
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise InputError(
                f"the cache cannot be read: {error.strerror or error}",
                where=f"cache folder {self.folder}",
                fix="name the folder that plans are kept in",
            ) from error
        for name in names:
            match = _NAME.fullmatch(name)
            try:
                facts = (self.folder / name).lstat()
            except OSError:  # another process removed it meanwhile
                continue
            if match is not None:
                path = self.folder / name
                size, made = facts.st_size, facts.st_mtime
                found.append(Entry(path, match["function"], match["key"], size, made))
        return tuple(sorted(found, key=lambda entry: (-entry.made, entry.path.name)))

    def clear(self, min_days: float = 0.0) -> tuple[Entry, ...]:
        """Removes the plans that are older than so many days, and returns them.

        Raises:
            InputError: One of them cannot be removed.
        """
        before = time.time() - min_days * _DAY_SECONDS
        removed = []
        for entry in self.entries():
            if min_days and entry.made > before:
                continue
            try:
                entry.path.unlink(missing_ok=True)
            except OSError as error:
                raise InputError(
                    f"a kept plan cannot be removed: {error.strerror or error}",
                    where=str(entry.path),
                    fix="remove it as the user that wrote it",
                ) from error
            removed.append(entry)
        return tuple(removed)


def why_damaged(error: PlanError) -> str:
    """Returns the first line of what is wrong with a file."""
    return error.what.partition("\n")[0]
