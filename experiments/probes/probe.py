"""A probe: one number of a compiler model, and the function that finds it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

from experiments.probes.bench import Bench

BOTH = frozenset({"tpu", "cuda"})
TPU = frozenset({"tpu"})
CUDA = frozenset({"cuda"})


class InconclusiveError(Exception):
    """The compiled programs do not tell the number; says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One number and what finds it.

    Args:
        record: `policy.field` of a compiler model; also the name of the probe.
        unit: Of the value.
        measure: Compiles what it needs on a bench; its docstring's first line describes the
            program. It raises `InconclusiveError` where the programs do not tell.
        platforms: Of the compilers that it can ask.
    """

    record: str
    unit: str
    measure: Callable[[Bench], object]
    platforms: frozenset[str] = BOTH

    @property
    def text(self) -> str:
        """The program as records tell it, and where it stands."""
        first = (inspect.getdoc(self.measure) or "").partition("\n")[0].rstrip(".")
        return f"{first} ({self.measure.__module__}.{self.measure.__name__})"
