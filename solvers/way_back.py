"""The way from a problem through several smaller ones, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Step(Protocol):
    """One smaller problem and how its choices relate to those of the one before."""

    def restore(self, choices: Sequence[int]) -> tuple[int, ...]:
        """Turns choices of the smaller problem into choices of the one before."""
        ...

    def reduce(self, choices: Sequence[int]) -> tuple[int, ...]:
        """Turns choices of the one before into near ones of the smaller problem."""
        ...


def restore_through(steps: Sequence[Step], choices: Sequence[int]) -> tuple[int, ...]:
    """Turns choices of the last problem into choices of the first; steps come first one first."""
    restored = tuple(choices)
    for step in reversed(steps):
        restored = step.restore(restored)
    return restored


def reduce_through(steps: Sequence[Step], choices: Sequence[int]) -> tuple[int, ...]:
    """Turns choices of the first problem into near ones of the last."""
    reduced = tuple(choices)
    for step in steps:
        reduced = step.reduce(reduced)
    return reduced
