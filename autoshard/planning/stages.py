"""Where the time of planning goes."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

COSTS = "candidates and costs"
SEARCH = "solve"
_LONG = frozenset({SEARCH, "mesh search"})
"""Stages that may take minutes."""


@dataclass(slots=True)
class Stages:
    """Wall seconds by stage of planning."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        """Add the time of a block to a stage.

        All stages but searches make objects by the million that live on: nothing looks for cycles
        among them meanwhile, which took a fifth of the time.
        """
        is_paused = name not in _LONG and gc.isenabled()
        if is_paused:
            gc.disable()
        start = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - start
            self.seconds[name] = self.seconds.get(name, 0.0) + spent
            if is_paused:
                gc.enable()
