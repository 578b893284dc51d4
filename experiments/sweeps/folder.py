"""The folder of a sweep: a file for every finished point, and the table they make together.

    sweep/
      points/3f0c...b2.json   one finished point: what was asked, and its row
      locks/3f0c...b2         held by the process at work on that point
      table.csv               all rows, made anew after every point

Every file is written whole or not at all, and a lock goes with the process that holds it. So a
process may be killed at any time, and several may work in one folder: each point is done once.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoshard.files import write_file
from experiments.sweeps.table import table_text


class SweepError(Exception):
    """A folder that holds what no sweep wrote."""


@dataclass(frozen=True, slots=True)
class SweepFolder:
    """Where a sweep keeps what it found.

    Attributes:
        root: The folder; it is made when something is written.
    """

    root: Path

    @property
    def table(self) -> Path:
        """The table of all finished points."""
        return self.root / "table.csv"

    def finished(self, identity: str) -> dict[str, Any] | None:
        """The row of a point, or None when it is not finished.

        Raises:
            SweepError: Its file is not one that a sweep wrote.
        """
        path = self._point(identity)
        return _read_row(path) if path.exists() else None

    @contextmanager
    def claim(self, identity: str) -> Iterator[bool]:
        """Hold a point for the length of the block.

        Yields:
            Whether it is held; false while another process holds it.
        """
        with _lock(self.root / "locks" / identity, wait=False) as held:
            yield held

    def write(self, identity: str, asked: dict[str, Any], row: dict[str, Any]) -> None:
        """Keep the row of a finished point, in place of one it may have had."""
        path = self._point(identity)
        path.parent.mkdir(parents=True, exist_ok=True)
        content = json.dumps({"asked": asked, "row": row}, indent=1) + "\n"
        write_file(path, content.encode())

    def rows(self) -> list[dict[str, Any]]:
        """The rows of all finished points, by identity.

        Raises:
            SweepError: A file among them is not one that a sweep wrote.
        """
        return [_read_row(path) for path in sorted((self.root / "points").glob("*.json"))]

    def merge(self) -> Path:
        """Make the table of all finished points.

        Whoever merges last has seen every point: each process writes its points before it waits
        for the lock.
        """
        with _lock(self.root / "locks" / "table", wait=True):
            write_file(self.table, table_text(self.rows()).encode())
        return self.table

    def _point(self, identity: str) -> Path:
        return self.root / "points" / f"{identity}.json"


def _read_row(path: Path) -> dict[str, Any]:
    try:
        row: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["row"]
        return {"id": path.stem, **row}
    except (ValueError, KeyError, TypeError) as error:
        raise SweepError(
            f"{path.name} is not a finished point: {error!r}; delete it to run the point again"
        ) from error


@contextmanager
def _lock(path: Path, *, wait: bool) -> Iterator[bool]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True  # the lock goes when the file is closed, or with the process
