"""What a floating-point engine's bound proves in integers: the bound less what it may be off by.

An engine reports prices of rows at which no column's reduced cost is below minus its tolerance.
Every allowed answer of the node-edge model sets one column a node and one a pair to 1 and all
others to 0, so that by weak duality it costs at least the reported bound less the tolerance for
each of those columns. Branches are cut off where their bound comes within a tolerance of the best
known. What is left may be rounded up to the next cost that answers can have at all (`CostGrid`).

The argument rests on engines keeping to their tolerances: `PER_COLUMN` is ten times the 1e-7 of
their defaults, `RELATIVE` 1e5 times the rounding of double precision. Where the margin is below a
step of the grid optima are proven; else a gap is left, far below `solvers.result.NEGLIGIBLE_GAP`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from solvers.problem import IntArray
from solvers.saturating import is_allowed

PER_COLUMN = Fraction(1, 10**6)
"""What the bound may be off for each column of an answer, in scaled units of cost."""

RELATIVE = Fraction(1, 10**11)
"""What it may be off in proportion, for sums in double precision."""


def margin(bound: float, num_columns: int) -> Fraction:
    """What an engine's bound may be above the truth, in the engine's units.

    Formula: ``RELATIVE |bound| + PER_COLUMN (num_columns + 1)``.

    Args:
        bound: As the engine reports it.
        num_columns: How many columns of an answer are 1: nodes and edges.
    """
    return RELATIVE * abs(Fraction(bound)) + PER_COLUMN * (num_columns + 1)


@dataclass(frozen=True, slots=True)
class CostGrid:
    """The costs answers can have: `offset` plus multiples of `step`.

    Args:
        offset: The sum of each table's least cost.
        step: The greatest common divisor of all differences within tables; 0 if there is none.
    """

    offset: int
    step: int

    @classmethod
    def of(cls, tables: Iterable[IntArray]) -> CostGrid:
        """Looks through the costs of nodes and edges; forbidden ones do not count."""
        offset, step = 0, 0
        by_table: dict[int, tuple[int, int]] = {}
        for table in tables:
            if id(table) not in by_table:
                allowed = table[is_allowed(table)]
                least = int(allowed.min()) if allowed.size else 0
                by_table[id(table)] = least, int(np.gcd.reduce(allowed - least, initial=0))
            least, divisor = by_table[id(table)]
            offset += least
            step = math.gcd(step, divisor)
        return cls(offset, step)

    def round_up(self, bound: int) -> int:
        """Returns the least cost on the grid from `bound` on."""
        if bound <= self.offset or not self.step:
            return max(bound, self.offset)
        return self.offset + -(-(bound - self.offset) // self.step) * self.step


def proven_bound(bound: float, scale: float, num_columns: int) -> int:
    """Returns a lower bound on integer costs that the engine's bound proves, at least 0.

    Args:
        bound: As the engine reports it; anything not finite proves nothing.
        scale: Units of cost for one of the engine's.
        num_columns: See `margin`.
    """
    if not math.isfinite(bound):
        return 0
    proven = (Fraction(bound) - margin(bound, num_columns)) * Fraction(scale)
    return max(0, math.ceil(proven))
