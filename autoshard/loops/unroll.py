"""A placed schedule as a list of steps: what moves, and what each processor computes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from autoshard.loops.holdings import Box, Coordinates, grid_points
from autoshard.loops.placed import (
    Placed,
    box_common,
    box_key,
    box_within,
    box_words,
    ring_distance,
    shifted,
)

Turn: TypeAlias = tuple[tuple[str, int], ...]
"""The time loops that are fixed, and their values."""


@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """Words that go from one processor to another.

    Args:
        source: Who sends.
        target: Who receives.
        box: Which points of the tensor.
    """

    source: Coordinates
    target: Coordinates
    box: Box

    @property
    def words(self) -> int:
        return box_words(self.box)


@dataclass(frozen=True, slots=True, eq=False)
class Bring:
    """An operand is brought at the beginning of a turn.

    Args:
        tensor: Which operand.
        turn: The loops that are fixed.
        pieces: Where each processor will have it; a processor that has all of it at home reads it
            there, and is not listed.
        moves: What is sent.
        passed_on: Whether pieces come from where they were used in the turn before; otherwise from
            home.
    """

    tensor: str
    turn: Turn
    pieces: dict[Coordinates, Box]
    moves: tuple[Move, ...]
    passed_on: bool


@dataclass(frozen=True, slots=True, eq=False)
class Start:
    """Every processor begins a sum at zero; one that sums up all it holds does so at home."""

    turn: Turn
    pieces: dict[Coordinates, Box]


@dataclass(frozen=True, slots=True, eq=False)
class Compute:
    """Every processor multiplies and adds what the loops inside `turn` run over."""

    turn: Turn


@dataclass(frozen=True, slots=True, eq=False)
class Send:
    """Sums go home at the end of a turn, and are added there."""

    turn: Turn
    moves: tuple[Move, ...]
    kept: tuple[tuple[Coordinates, Box], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Release:
    """The pieces of these tensors brought for this turn are given up."""

    tensors: tuple[str, ...]
    turn: Turn


@dataclass(frozen=True, slots=True, eq=False)
class Copy:
    """At the very end, results that several processors hold go from the first to the others."""

    moves: tuple[Move, ...]


Step: TypeAlias = Bring | Start | Compute | Send | Release | Copy
StepKind: TypeAlias = Literal["bring", "start", "compute", "send", "release", "copy"]


@dataclass(frozen=True, slots=True, eq=False)
class Unrolled:
    """The steps of a placed schedule, all processors side by side.

    Args:
        placed: What was unrolled.
        steps: In order.
    """

    placed: Placed
    steps: tuple[Step, ...]

    def moves(self) -> Iterator[tuple[str, Move]]:
        """Everything that is sent: the tensor and the move."""
        result = self.placed.schedule.statement.result.tensor
        for step in self.steps:
            match step:
                case Bring():
                    yield from ((step.tensor, move) for move in step.moves)
                case Send() | Copy():
                    yield from ((result, move) for move in step.moves)

    def words_received(self) -> dict[str, dict[Coordinates, int]]:
        """For each tensor and processor, the words that come in."""
        names = [access.tensor for access in self.placed.schedule.statement.accesses]
        counts = {name: dict.fromkeys(grid_points(self.placed.grid), 0) for name in names}
        for tensor, move in self.moves():
            counts[tensor][move.target] += move.words
        return counts

    def words_per_processor(self) -> float:
        """Words received, of all tensors, on average over the processors."""
        counts = self.words_received()
        total = sum(words for by_processor in counts.values() for words in by_processor.values())
        return total / self.placed.num_processors


def unroll(placed: Placed) -> Unrolled:
    """Run through the time loops and note what moves and what is computed.

    A piece comes from the nearest processor that has it at home, unless the loop is rotated such
    that some neighbour used the very piece in the turn before: then it is passed on from there.
    A sum that several processors hold is taken at one of them, and copied to the others at the end.
    """
    unroller = _Unroller(placed)
    unroller.body(0, {})
    copies = unroller.copies()
    if copies:
        unroller.steps.append(Copy(copies))
    return Unrolled(placed, tuple(unroller.steps))


@dataclass(slots=True)
class _Unroller:
    placed: Placed
    steps: list[Step] = field(default_factory=list)
    gathered: dict[tuple[bytes, ...], tuple[Box, Coordinates, tuple[Coordinates, ...]]] = field(
        default_factory=dict
    )

    def body(self, depth: int, at: dict[str, int]) -> None:
        schedule = self.placed.schedule
        turn = tuple(at.items())
        result = schedule.statement.result.tensor
        here = [
            access.tensor
            for access in schedule.statement.accesses
            if schedule.depth(access.tensor) == depth
        ]
        for tensor in here:
            if tensor != result:
                self.bring(tensor, depth, at)
        if result in here:
            self.start(result, at)
        if depth == schedule.deepest:
            names = tuple(access.tensor for access in schedule.statement.accesses)
            for lane in self.placed.lanes(names, at):
                self.steps.append(Compute((*turn, *lane.items())))
        else:
            loop = schedule.time_loops[depth]
            for value in range(loop.extent):
                self.body(depth + 1, {**at, loop.variable: value})
        if result in here:
            self.send(result, at)
        if here:
            self.steps.append(Release(tuple(here), turn))

    def bring(self, tensor: str, depth: int, at: dict[str, int]) -> None:
        placed = self.placed
        offsets = placed.passed_on(tensor)
        is_first = depth == 0 or at[placed.schedule.time_loops[depth - 1].variable] == 0
        for lane in placed.lanes((tensor,), at):
            turn = (*at.items(), *lane.items())
            pieces: dict[Coordinates, Box] = {}
            moves: list[Move] = []
            for processor in grid_points(placed.grid):
                box = placed.needs(tensor, {**at, **lane, **placed.at_processor(processor)})
                if offsets is not None:
                    pieces[processor] = box
                    if not is_first:
                        source = shifted(processor, offsets[tuple(lane.items())], placed.grid)
                        moves.append(Move(source, processor, box))
                        continue
                elif box_within(box, placed.held[tensor][processor]):
                    continue
                pieces[processor] = box
                moves += self.from_home(tensor, processor, box)
            passed = offsets is not None and not is_first
            self.steps.append(Bring(tensor, turn, pieces, tuple(moves), passed))

    def from_home(self, tensor: str, processor: Coordinates, box: Box) -> Iterator[Move]:
        """Moves that complete `box` from what others hold at home."""
        for held, holders in self.colours(tensor):
            common = box_common(box, held)
            if common is None or processor in holders:
                continue
            nearest = min(holders, key=lambda holder: self.nearness(processor, holder))
            yield Move(nearest, processor, common)

    def nearness(self, one: Coordinates, other: Coordinates) -> tuple[int, Coordinates]:
        offset = tuple(b - a for a, b in zip(one, other, strict=True))
        return ring_distance(offset, self.placed.grid), shifted(offset, offset, self.placed.grid)

    def colours(self, tensor: str) -> list[tuple[Box, tuple[Coordinates, ...]]]:
        """The distinct boxes of a tensor, and who holds each at home."""
        boxes: dict[tuple[bytes, ...], tuple[Box, list[Coordinates]]] = {}
        for processor, box in self.placed.held[tensor].items():
            if box is not None:
                boxes.setdefault(box_key(box), (box, []))[1].append(processor)
        return [(box, tuple(holders)) for box, holders in boxes.values()]

    def start(self, result: str, at: dict[str, int]) -> None:
        for lane in self.placed.lanes((result,), at):
            pieces = {}
            for processor in grid_points(self.placed.grid):
                here = {**at, **lane, **self.placed.at_processor(processor)}
                box = self.placed.needs(result, here)
                held = self.placed.held[result][processor]
                if held is None or box_key(box) != box_key(held):
                    pieces[processor] = box
            self.steps.append(Start((*at.items(), *lane.items()), pieces))

    def send(self, result: str, at: dict[str, int]) -> None:
        for lane in self.placed.lanes((result,), at):
            wanted: dict[tuple[bytes, ...], tuple[Box, tuple[Coordinates, ...], list[Coordinates]]]
            wanted = {}
            for processor in grid_points(self.placed.grid):
                here = {**at, **lane, **self.placed.at_processor(processor)}
                box = self.placed.needs(result, here)
                for held, holders in self.colours(result):
                    common = box_common(box, held)
                    if common is not None:
                        entry = wanted.setdefault(box_key(common), (common, holders, []))
                        entry[2].append(processor)
            moves: list[Move] = []
            kept: list[tuple[Coordinates, Box]] = []
            for key, (box, holders, contributors) in wanted.items():
                first = next((c for c in contributors if c in holders), holders[0])
                if key in self.gathered:
                    first = self.gathered[key][1]
                self.gathered[key] = (box, first, holders)
                moves += [Move(source, first, box) for source in contributors if source != first]
                if first in contributors:
                    kept.append((first, box))
            self.steps.append(Send((*at.items(), *lane.items()), tuple(moves), tuple(kept)))

    def copies(self) -> tuple[Move, ...]:
        return tuple(
            itertools.chain.from_iterable(
                (Move(first, holder, box) for holder in holders if holder != first)
                for box, first, holders in self.gathered.values()
            )
        )
