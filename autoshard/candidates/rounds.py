"""Rounds: dimensions of a smaller priority are decided first, and later rounds only extend.

In the round of priority p every dimension of priority p or smaller binds as it is written; those
that wait for a later round are held uncut, and only mesh parts that binding dimensions name may cut
anything. What a round decided is kept: the next one cuts further, at the minor end of dimensions.
The last round may use the whole mesh.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field

from autoshard.candidates.candidate import Candidate
from autoshard.graph.program import Graph, Op
from autoshard.layouts import MeshParts, refines
from autoshard.wishes.pinned import Pin
from autoshard.wishes.waiting import Waiting, waiting_dims
from autoshard.wishes.wishes import Wishes

Pins = Mapping[int, Mapping[int, Pin]]  # by op, then by value


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Round:
    """What holds while one round is planned.

    Args:
        priority: Dimensions of this priority and of smaller ones bind; None: all do.
        usable: The mesh parts that may cut anything; None: all of them.
        waiting: By value, what of it is left to later rounds.
        decided: By op, the candidate that the round before chose.
    """

    priority: int | None = None
    usable: frozenset[int] | None = None
    waiting: Mapping[int, Waiting] = field(default_factory=dict)
    decided: Mapping[int, Candidate] = field(default_factory=dict)

    def pin(self, pin: Pin) -> Pin:
        """What a pin asks in this round."""
        return pin if self.priority is None else pin.in_round(self.priority)


ONLY_ROUND = Round()


def rounds_of(graph: Graph, pins: Pins, parts: MeshParts, wishes: Wishes) -> tuple[Round, ...]:
    """The rounds that pins ask for, with nothing decided yet.

    One that limits nothing where all dimensions have one priority.

    Args:
        graph: The program.
        pins: By op, then by value.
        parts: The mesh parts of this plan.
        wishes: They say which tensors must end the same.
    """
    flat = [pin for of_op in pins.values() for pin in of_op.values()]
    priorities = priorities_of(flat)
    if len(priorities) < 2:
        return (ONLY_ROUND,)
    return (
        *(
            Round(
                priority=priority,
                usable=parts_in_use(flat, priority, parts),
                waiting=waiting_dims(graph, pins, wishes, priority),
            )
            for priority in priorities[:-1]
        ),
        Round(priority=priorities[-1]),
    )


def priorities_of(pins: Iterable[Pin]) -> tuple[int, ...]:
    """The priorities that dimensions of pins have, ascending.

    Dimensions that ask for nothing have none: uncut closed ones, and open ones without axes unless
    a priority is written on them.
    """
    return tuple(sorted({priority for pin in pins for priority in pin.priorities}))


def parts_in_use(pins: Iterable[Pin], priority: int, parts: MeshParts) -> frozenset[int]:
    """The mesh parts that dimensions of this priority or a smaller one name.

    In place of parts of another mesh, those of its twin on this one.
    """
    asked = (pin.in_round(priority).asked for pin in pins)
    layouts = (parts.twin(layout) or layout for layout in asked)
    return frozenset(part for layout in layouts for dim in layout for part in dim)


def extends(candidate: Candidate, decided: Candidate) -> bool:
    """Whether a candidate cuts everything at least as `decided` does, further at minor ends."""
    return candidate.cut >= decided.cut and all(
        refines(finer, coarser)
        for finer, coarser in zip(
            (*candidate.operands, *candidate.results),
            (*decided.operands, *decided.results),
            strict=True,
        )
    )


@dataclass(slots=True, eq=False)
class RoundFilter:
    """Leaves of an op's candidates those that a round admits; equal ops share what is left."""

    round: Round
    _known: dict[Hashable, tuple[object, tuple[Candidate, ...]]] = field(default_factory=dict)

    def usable(self, base: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
        """Those that cut nothing by mesh parts the round has no use for."""
        usable = self.round.usable
        if usable is None:
            return base

        def find() -> tuple[Candidate, ...]:
            return tuple(
                c
                for c in base
                if all(
                    usable.issuperset(dim)
                    for layout in (*c.operands, *c.results, c.partial)
                    for dim in layout
                )
            )

        return self._remembered(("usable", id(base)), base, find)

    def extending(self, op: Op, base: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
        """Those that extend what was decided for the op, which is among them."""
        decided = self.round.decided.get(op.index)
        if decided is None:
            return base

        def find() -> tuple[Candidate, ...]:
            found = tuple(c for c in base if extends(c, decided))
            return found if decided in found else (decided, *found)

        return self._remembered(("extending", id(base), decided), base, find)

    def leaving(self, op: Op, base: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
        """Those that leave to later rounds what is theirs; all where the user asks otherwise."""
        waiting = self.round.waiting
        places = tuple(
            (is_result, position, waiting[value])
            for is_result, values in ((False, op.operands), (True, op.results))
            for position, value in enumerate(values)
            if value in waiting
        )
        if not places:
            return base

        def find() -> tuple[Candidate, ...]:
            found = tuple(
                c
                for c in base
                if all(left.is_left_by(c.side(is_result=r)[place]) for r, place, left in places)
            )
            return found or base

        return self._remembered(("leaving", id(base), places), base, find)

    def _remembered(
        self,
        key: Hashable,
        base: tuple[Candidate, ...],
        find: Callable[[], tuple[Candidate, ...]],
    ) -> tuple[Candidate, ...]:
        """What `find` finds, once for each key; `base` is kept so that its id stays its own."""
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = (base, find())
        return known[1]
