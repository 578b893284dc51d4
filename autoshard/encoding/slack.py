"""How long a collective may take before anyone waits for it, known before anything is chosen.

A collective can run beside whatever the program does between the op that makes its operand and the
first op that needs its result. The computing there is shared out among the collectives that may
want it, each second to one of them, so that together they never hide behind more than there is.
What is counted is the computing that every plan has: each op cut as far as it can be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from autoshard.graph.last_uses import carry_stop
from autoshard.graph.op_traits import FUSIBLE
from autoshard.graph.program import Graph, Op, OpKind

_LAST = 2**62


@dataclass(frozen=True, slots=True)
class Window:
    """Where in a body a collective may run.

    Args:
        body: Index of the region; of the program itself 0.
        start: Ops of the body that are over when its operand is there.
        stop: Ops of the body that come before its first reader.
        is_prefetch: Whether all that it needs is there when the body starts.
    """

    body: int
    start: int
    stop: int
    is_prefetch: bool


@dataclass(frozen=True, slots=True)
class Wanted:
    """A collective that a plan may have.

    Args:
        window: Where it may run.
        seconds: What it takes at most.
    """

    window: Window
    seconds: float


class Windows:
    """The windows of a program's reshards and sums.

    Ops that only compute element by element, or move elements, count as done when they are wanted:
    a weight that is converted where it is used is there from the start.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._places: dict[int, list[int]] = {}
        self._place: list[int] = []
        for op in graph.ops:
            body = self._places.setdefault(self.body_of(op), [])
            self._place.append(len(body))
            body.append(op.index)
        self._loop_stops = {op.index: carry_stop(graph, op) for op in graph.ops if _is_carry(op)}
        self._start = self._find_starts()
        self._stop = self._find_stops(graph.consumers)

    def body_of(self, op: Op) -> int:
        """The body an op runs in: bodies of `shard_map` belong to the one around them."""
        return self._home(op.region)

    def _home(self, region: int) -> int:
        while self._graph.regions[region].kind == "manual":
            region = self._graph.regions[region].parent
        return region

    def ops_of(self, body: int) -> Sequence[int]:
        """Ops of a body, in program order; those of bodies inside it are none of them."""
        return self._places.get(body, [])

    def of_read(self, op: Op, position: int) -> Window:
        """Where the move of an operand may run."""
        body = self.body_of(op)
        start = self._start_in(op.operands[position], body)
        return Window(body, start, max(start, self._stop[op.index]), start == 0)

    def of_sums(self, op: Op) -> Window:
        """Where the sums that an op ends in may be taken."""
        start = self._place[op.index] + 1
        stop = min((self._stop_of_value[value] for value in op.results), default=start)
        return Window(self.body_of(op), start, max(start, stop), is_prefetch=False)

    def _start_in(self, value: int, body: int) -> int:
        """Ops of a body that are over when a value can be there."""
        made = self._graph.maker(value)
        return self._start[made.index] if self.body_of(made) == body else 0

    def _find_starts(self) -> list[int]:
        found: list[int] = []
        for op in self._graph.ops:
            body = self.body_of(op)
            if op.index in self._loop_stops:
                found.append(self._before(body, self._loop_stops[op.index]))
            elif op.kind is OpKind.JOIN or not _is_movable(op):
                found.append(self._place[op.index] + 1)
            else:
                found.append(max((self._start_of(v, body, found) for v in op.operands), default=0))
        return found

    def _start_of(self, value: int, body: int, found: Sequence[int]) -> int:
        made = self._graph.maker(value)
        return found[made.index] if self.body_of(made) == body and made.index < len(found) else 0

    def _find_stops(self, consumers: Sequence[Sequence[int]]) -> list[int]:
        """Per op, how many ops of its body come before the one that cannot do without it."""
        graph = self._graph
        stops = [0] * len(graph.ops)
        self._stop_of_value = [_LAST] * len(graph.values)
        for op in reversed(graph.ops):
            body = self.body_of(op)
            for value in op.results:
                self._stop_of_value[value] = min(
                    (self._reader_stop(graph.ops[r], op, body, stops) for r in consumers[value]),
                    default=len(self._places[body]),
                )
            stops[op.index] = self._place[op.index]
            if op.kind in (OpKind.COMPUTE, OpKind.CONSTRAINT) and _is_movable(op):
                later = min(self._stop_of_value[value] for value in op.results)
                stops[op.index] = max(stops[op.index], later)
        return stops

    def _reader_stop(self, reader: Op, op: Op, body: int, stops: Sequence[int]) -> int:
        home = self.body_of(reader)
        if home == body:
            return stops[reader.index] if reader.index > op.index else self._place[reader.index]
        for region in self._graph.regions:  # a body inside this one that reads it
            holds = region.start <= reader.index < region.stop and region.kind != "manual"
            if holds and region.parent >= 0 and self._home(region.parent) == body:
                return self._before(body, region.start)
        return len(self._places[body])

    def _before(self, body: int, index: int) -> int:
        """Ops of a body that come before a place in the program."""
        return int(np.searchsorted(self._places[body], index))


def _is_movable(op: Op) -> bool:
    return op.kind is not OpKind.COMPUTE or op.op_class in FUSIBLE


def _is_carry(op: Op) -> bool:
    return op.kind is OpKind.JOIN and op.name == "while"


@dataclass(slots=True)
class SharedSlack:
    """The computing of a program, to be shared out.

    Args:
        least_seconds: Per op, what one run of it computes under every plan.
    """

    windows: Windows
    least_seconds: Mapping[int, float]
    _free: dict[int, npt.NDArray[np.float64]] = field(default_factory=dict)

    def share_out(self, wanted: Sequence[Wanted]) -> list[float]:
        """Seconds that each of some collectives may take unnoticed.

        Those that are needed first are served first, from the earliest computing on that is free.
        """
        order = sorted(range(len(wanted)), key=lambda i: (wanted[i].window.stop, i))
        found = [0.0] * len(wanted)
        for index in order:
            found[index] = self._take(wanted[index])
        return found

    def _take(self, wanted: Wanted) -> float:
        window = wanted.window
        free = self._free_in(window.body)[window.start : window.stop]
        taken = np.minimum(np.cumsum(free), wanted.seconds)
        if not len(taken):
            return 0.0
        free -= np.diff(taken, prepend=0.0)
        np.maximum(free, 0.0, out=free)
        return float(taken[-1])

    def _free_in(self, body: int) -> npt.NDArray[np.float64]:
        found = self._free.get(body)
        if found is None:
            seconds = [self.least_seconds.get(op, 0.0) for op in self.windows.ops_of(body)]
            found = self._free[body] = np.array(seconds)
        return found


def prefetched_first(wanted: Iterable[Wanted]) -> list[list[int]]:
    """Places of the collectives that can start with their body, and of all others."""
    parts: list[list[int]] = [[], []]
    for place, one in enumerate(wanted):
        parts[0 if one.window.is_prefetch else 1].append(place)
    return parts
