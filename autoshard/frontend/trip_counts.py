"""How often loops run: what the program says, else what the user says, else a stated default."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from autoshard.errors import InputError
from autoshard.frontend.graph_builder import GraphBuilder, OpDraft
from autoshard.graph.program import OpKind

_SAME = frozenset({"convert", "reshape", "broadcast_in_dim", "optimization_barrier"})
_FLIPPED = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE", "NE": "NE", "EQ": "EQ"}


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop of the program, imported as if it ran once.

    Args:
        region: Its region.
        joins: The values carried, which JOIN ops make.
        condition: The value that says whether to go on.
        source: The user's line, or "".
        equation: Path of its jaxpr equation, or "".
    """

    region: int
    joins: tuple[int, ...]
    condition: int
    source: str
    equation: str

    @property
    def where(self) -> str:
        return self.source or (f"equation {self.equation}" if self.equation else "no source line")


@dataclass(slots=True)
class LoopCounter:
    """Reads trip counts off loops that count a scalar up or down to a bound known beforehand.

    Args:
        builder: The imported program.
        scalar_ops: The MLIR op of every scalar constant and comparison, by value.
    """

    builder: GraphBuilder
    scalar_ops: Mapping[int, Any]
    _known: dict[int, int | None] = field(default_factory=dict)

    def trips(self, loop: Loop) -> tuple[int | None, bool]:
        """How often a loop runs, and whether it surely runs that often.

        A loop that goes on while a counter is below its bound *and* something else holds has only
        a limit. `(None, False)` where not even that is known.
        """
        return self._trips(loop, loop.condition)

    def _trips(self, loop: Loop, condition: int) -> tuple[int | None, bool]:
        op = self.builder.maker(self._plain(condition))
        if op.name == "and":
            found = [self._trips(loop, operand) for operand in op.operands]
            limits = [count for count, _ in found if count is not None]
            return (min(limits) if limits else None), all(exact for _, exact in found)
        if op.name != "compare":
            return None, False
        direction = self._direction(op)
        if direction == "NE" and self.builder.values[op.operands[0]].type[1] == "i1":
            # How `jnp.logical_and` asks whether a truth value is true.
            sides = [self.integer(operand) for operand in op.operands]
            if 0 in sides:
                return self._trips(loop, op.operands[1 - sides.index(0)])
        count = self._counted(loop, op, direction)
        return count, count is not None

    def _direction(self, compare: OpDraft) -> str:
        attribute = self.scalar_ops[compare.results[0]].attributes["comparison_direction"]
        return str(stablehlo.ComparisonDirectionAttr(attribute).value)

    def _counted(self, loop: Loop, compare: OpDraft, direction: str) -> int | None:
        left, right = (self._plain(value) for value in compare.operands)
        if left not in loop.joins or self.integer(left) is not None:
            left, right = right, left
            direction = _FLIPPED[direction]
        join = self.builder.maker(left)
        if left not in loop.joins or len(join.operands) != 2:
            return None
        start, stop = self.integer(join.operands[0]), self.integer(right)
        step = self._step(left, join.operands[1])
        if start is None or stop is None or step is None:
            return None
        return count_steps(start, stop, step, direction)

    def _step(self, counter: int, back: int) -> int | None:
        """What one run of the body adds to its counter."""
        op = self.builder.maker(self._plain(back))
        if op.name not in ("add", "subtract"):
            return None
        first, second = (self._plain(value) for value in op.operands)
        if op.name == "subtract":
            step = self.integer(second) if first == counter else None
            return None if step is None else -step
        if counter not in (first, second):
            return None
        return self.integer(second if first == counter else first)

    def integer(self, value: int) -> int | None:
        """A scalar integer that is the same whenever the program runs, or None."""
        if value not in self._known:
            self._known[value] = None  # a value that depends on itself is not known
            self._known[value] = self._integer(value)
        return self._known[value]

    def _integer(self, value: int) -> int | None:
        if self.builder.shape(value) != ():
            return None
        op = self.builder.maker(value)
        if op.name in _SAME or (op.kind is OpKind.JOIN and len(op.operands) == 1):
            return self.integer(op.operands[0])
        if op.name == "constant":
            return scalar_integer(self.scalar_ops[value])
        if op.name == "clamp":  # as JAX writes the index of a `lax.switch`
            low, inner, high = (self.integer(operand) for operand in op.operands)
            if low is None or inner is None or high is None:
                return None
            return min(max(low, inner), high)
        if op.name not in ("add", "subtract", "multiply", "minimum", "maximum"):
            return None
        first, second = (self.integer(operand) for operand in op.operands)
        if first is None or second is None:
            return None
        return {
            "add": first + second,
            "subtract": first - second,
            "multiply": first * second,
            "minimum": min(first, second),
            "maximum": max(first, second),
        }[op.name]

    def _plain(self, value: int) -> int:
        """The value behind conversions that leave a scalar the same."""
        op = self.builder.maker(value)
        while op.name in _SAME and not self.builder.shape(op.operands[0]):
            value = op.operands[0]
            op = self.builder.maker(value)
        return value


def scalar_integer(constant: Any) -> int | None:
    """The value of a scalar constant op; None where it is no whole number and no truth value."""
    data = np.asarray(ir.DenseElementsAttr(constant.attributes["value"]))
    if data.dtype.kind not in "iubf":
        return None
    value = float(data.reshape(-1)[0]) if data.dtype.kind == "f" else data.reshape(-1)[0]
    return int(value) if value == value // 1 else None


def count_steps(start: int, stop: int, step: int, direction: str) -> int | None:
    """Runs of a loop that goes from `start` by `step` while it compares to `stop` as told.

    Args:
        start: First value of the counter.
        stop: What it is compared to.
        step: What each run adds.
        direction: `LT`, `LE`, `GT`, `GE` or `NE`, the counter on the left.

    Returns:
        None for a loop that never ends or whose direction is another.
    """
    if direction == "NE":
        direction = "LT" if start <= stop else "GT"
        if (stop - start) % (step or 1):
            return None
    if direction in ("LE", "GE"):
        stop += 1 if direction == "LE" else -1
        direction = "LT" if direction == "LE" else "GT"
    if direction == "GT":
        start, stop, step, direction = -start, -stop, -step, "LT"
    if direction != "LT":
        return None
    if start >= stop:
        return 0
    return -(-(stop - start) // step) if step > 0 else None


def check_trip_count(count: float, where: str) -> None:
    """Refuse what is no number of runs.

    Raises:
        InputError: `count` is negative, not finite, or no number.
    """
    is_number = isinstance(count, (int, float)) and not isinstance(count, bool)
    if not is_number or not isfinite(count) or count < 0:
        raise InputError(
            f"a loop cannot run {count!r} times",
            where=where,
            fix="give how often its body runs, 0 or more",
        )


@dataclass(slots=True)
class ToldTripCounts:
    """What the user says of loops, by a part of the source (`"train.py:40"`) or equation path.

    Raises:
        InputError: A count is not a number of runs.
    """

    counts: Mapping[str, float]
    _used: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        for key, count in self.counts.items():
            check_trip_count(count, f"trip_counts[{key!r}]")

    def of(self, loop: Loop) -> tuple[str, float] | None:
        """The user's key and count for a loop; the first key that fits."""
        for key, count in self.counts.items():
            # "train.py:4" is not "train.py:40".
            in_source = re.search(rf"{re.escape(key)}(?!\d)", loop.source)
            if key and (in_source or key == loop.equation):
                self._used.add(key)
                return key, float(count)
        return None

    def check_all_used(self, loops: list[Loop]) -> None:
        """Refuse counts for loops that the program does not have.

        Raises:
            InputError: Names the keys, and the program's loops.
        """
        unused = [key for key in self.counts if key not in self._used]
        if unused:
            places = "; ".join(dict.fromkeys(loop.where for loop in loops)) or "none"
            raise InputError(
                f"the program has no loop at {', '.join(map(repr, unused))}",
                where="trip_counts",
                fix=f"name a loop by the end of its source line; the program's loops: {places}",
            )
