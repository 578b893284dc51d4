"""The ops of a graph under construction by the equation that they were imported for."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from autoshard.frontend.graph_builder import OpDraft

_NUMBER = re.compile(r"\d+")
BEFORE_ALL = -1
"""The number under which arguments stand, which are of no equation."""


@dataclass(slots=True)
class Trail:
    """The ops that were imported, by equation.

    Attributes:
        made: By number of an equation, the results of its last op.
    """

    made: dict[int, Sequence[int]] = field(default_factory=dict)
    _starts: list[tuple[int, int]] = field(default_factory=list)
    _merged: dict[int, OpDraft] = field(default_factory=dict)

    def enter(self, num_ops: int, equation: str) -> None:
        """An op of an equation comes next, after so many."""
        self._starts.append((num_ops, equation_number(equation)))

    def leave(self, equation: str, results: Sequence[int]) -> None:
        """It is over."""
        self.made[equation_number(equation)] = results

    def merge(self, op: OpDraft) -> None:
        """In the place of what comes, an earlier op is read; a constant is the same for all."""
        if op.operands:
            self._merged[len(self._starts) - 1] = op

    def ops_by_equation(self, ops: Sequence[OpDraft]) -> dict[int, list[OpDraft]]:
        """By number of an equation, its ops and those that it reads in the place of its own.

        Constants that have no equation are for the next one, arguments under a number of their own.
        """
        found: defaultdict[int, list[OpDraft]] = defaultdict(list)
        waiting: list[OpDraft] = []
        stops = [start for start, _ in self._starts[1:]] + [len(ops)]
        found[BEFORE_ALL] = [*ops[: self._starts[0][0]]] if self._starts else [*ops]
        for place, ((start, number), stop) in enumerate(zip(self._starts, stops, strict=True)):
            waiting += ops[start:stop]
            if place in self._merged:
                waiting.append(self._merged[place])
            if number >= 0:
                found[number] += waiting
                waiting = []
        return found


def equation_number(path: str) -> int:
    """The equation of the program that a path begins with; -1 for none."""
    match = _NUMBER.match(path)
    return int(match[0]) if match else BEFORE_ALL


def in_equation(path: str, number: int) -> str:
    """The same path in another equation of the program."""
    return _NUMBER.sub(str(number), path, count=1)
