"""One plan in a cache: found, waited for, or kept once it was made."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from autoshard.errors import PlanError
from autoshard.plan_cache.entries import PlanCache, why_damaged
from autoshard.plans.plan import PlanData

_POLL_SECONDS = 0.25


@dataclass(slots=True)
class Lookup:
    """The place of one plan in a cache.

    Args:
        cache: The folder.
        path: The plan's file in it.
        notes: What was found wrong there.
    """

    cache: PlanCache
    path: Path
    notes: list[str] = field(default_factory=list)

    @staticmethod
    def of(cache: PlanCache, function: str, key: str) -> Lookup:
        return Lookup(cache, cache.path(function, key))

    def found(self) -> PlanData | None:
        """Returns the kept plan; None where there is none, or a damaged one, which is noted."""
        try:
            return self.cache.read(self.path)
        except PlanError as error:
            self.notes = [f"the kept plan {self.path.name} is damaged: {why_damaged(error)}"]
            return None

    def waited_for(
        self, seconds: float, *, sleep: Callable[[float], None] = time.sleep
    ) -> PlanData:
        """Returns the plan once another process has kept it.

        Args:
            seconds: To wait at most.
            sleep: Waits between looks.

        Raises:
            PlanError: Time is up.
        """
        until = time.monotonic() + seconds
        while True:
            _look_again(self.cache.folder)
            data = self.found()
            if data is not None:
                return data
            if time.monotonic() >= until:
                raise PlanError(
                    f"process 0 kept no plan within {seconds:.0f} s"
                    f"{''.join(f'; {note}' for note in self.notes)}",
                    where=str(self.path),
                    fix="see what process 0 says; all processes need the same folder (on a network"
                    " file system, between hosts), code and call",
                )
            sleep(_POLL_SECONDS)

    def keep(self, data: PlanData) -> str:
        """Writes the plan; returns "", or why it could not be written."""
        try:
            self.cache.keep(self.path, data)
        except OSError as error:
            return f"the plan was not kept in {self.cache.folder}: {error.strerror or error}"
        return ""


def _look_again(folder: Path) -> None:
    """Opens a folder: NFS then asks its server which files there are, instead of remembering."""
    try:
        with os.scandir(folder):
            pass
    except OSError:  # not made yet
        pass
