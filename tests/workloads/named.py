"""Workloads by name, each built once: the largest takes seconds to trace."""

from __future__ import annotations

from functools import cache

from experiments.workloads import Workload, get_workload


@cache
def named(name: str) -> Workload:
    """A workload of the registry in its own sizes."""
    return get_workload(name)
