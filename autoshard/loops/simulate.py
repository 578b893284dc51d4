"""Running the steps of a schedule in NumPy, with a store of its own for every processor."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from autoshard.errors import ScheduleError
from autoshard.loops.holdings import Box, Coordinates, grid_points
from autoshard.loops.placed import Placed, box_key, box_within, box_words
from autoshard.loops.unroll import (
    Bring,
    Compute,
    Copy,
    Move,
    Release,
    Send,
    Start,
    Turn,
    unroll,
)


@dataclass(frozen=True, slots=True, eq=False)
class Simulated:
    """What came out of a simulated run.

    Args:
        value: The result, put together from the processors that hold it.
        words_received: For each tensor and processor, the words that came in.
        peak_words: For each processor, the most words it held beside what lives there, at one time.
    """

    value: NDArray[np.float64]
    words_received: dict[str, dict[Coordinates, int]]
    peak_words: dict[Coordinates, int]

    @property
    def words_per_processor(self) -> float:
        """Words received, of all tensors, on average over the processors."""
        total = sum(sum(counts.values()) for counts in self.words_received.values())
        return total / len(self.peak_words)

    @property
    def most_peak_words(self) -> int:
        return max(self.peak_words.values())


@dataclass(slots=True, eq=False)
class _Tile:
    """A product of index sets of a tensor, with its values."""

    box: Box
    data: NDArray[np.float64]
    turn: Turn = ()

    def _places(self, box: Box) -> tuple[NDArray[np.intp], ...]:
        places = (np.searchsorted(own, wanted) for own, wanted in zip(self.box, box, strict=True))
        return np.ix_(*places) if box else ()

    def read(self, box: Box) -> NDArray[np.float64]:
        return np.array(self.data[self._places(box)])

    def write(self, box: Box, data: NDArray[np.float64]) -> None:
        self.data[self._places(box)] = data

    def add(self, box: Box, data: NDArray[np.float64]) -> None:
        self.data[self._places(box)] += data


def simulate(placed: Placed, *operands: NDArray[np.float64]) -> Simulated:
    """Unroll a schedule and run it on a simulated grid.

    Every processor has a store of its own; a move reads from the sender's and writes to the
    receiver's, and a processor computes from its own alone.

    Args:
        placed: The schedule and the homes.
        operands: In the order of the statement.

    Raises:
        ScheduleError: The operands have other shapes than the schedule was made for.
    """
    schedule = placed.schedule
    names = [access.tensor for access in schedule.statement.operands]
    arrays = dict(zip(names, map(np.asarray, operands), strict=True))
    for name, array in arrays.items():
        if array.shape != placed.shape(name):
            raise ScheduleError(
                f"{name} has shape {list(array.shape)}, and the schedule is for"
                f" {list(placed.shape(name))}",
                where=str(schedule.statement),
                fix="make the schedule for these shapes",
            )
    steps = unroll(placed)
    machine = _Machine(placed, arrays)
    for step in steps.steps:
        if not isinstance(step, Bring):
            machine.forget_passed()
        match step:
            case Bring():
                machine.bring(step)
            case Start():
                machine.start(step)
            case Compute():
                machine.compute(step)
            case Send():
                machine.send(step)
            case Release():
                machine.release(step)
            case Copy():
                machine.copy(step.moves)
    return Simulated(machine.result(), steps.words_received(), machine.peak_words)


@dataclass(slots=True)
class _Machine:
    """The stores of all processors: tiles at home, and tiles brought."""

    placed: Placed
    arrays: dict[str, NDArray[np.float64]]
    home: dict[tuple[str, Coordinates], _Tile] = field(default_factory=dict)
    brought: dict[tuple[str, Coordinates], list[_Tile]] = field(default_factory=dict)
    old: dict[tuple[str, Coordinates], list[_Tile]] = field(default_factory=dict)
    peak_words: dict[Coordinates, int] = field(default_factory=dict)
    live_words: dict[Coordinates, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        result = self.result_name
        shape = self.placed.shape(result)
        whole = {**self.arrays, result: np.zeros(shape)}
        for tensor, array in whole.items():
            for processor, box in self.placed.held[tensor].items():
                if box is not None:
                    data = array[np.ix_(*box)] if box else array
                    self.home[tensor, processor] = _Tile(box, np.array(data, dtype=np.float64))
        for processor in grid_points(self.placed.grid):
            self.peak_words[processor] = self.live_words[processor] = 0

    @property
    def result_name(self) -> str:
        return self.placed.schedule.statement.result.tensor

    def hold(self, tensor: str, processor: Coordinates, tile: _Tile) -> None:
        self.brought.setdefault((tensor, processor), []).append(tile)
        live = self.live_words[processor] + box_words(tile.box)
        self.live_words[processor] = live
        self.peak_words[processor] = max(self.peak_words[processor], live)

    def drop(self, processor: Coordinates, tiles: list[_Tile]) -> None:
        self.live_words[processor] -= sum(box_words(tile.box) for tile in tiles)

    def tile(self, tensor: str, processor: Coordinates, box: Box) -> _Tile:
        """The tile of this processor that has all of `box`; what was brought comes first."""
        for tile in self.brought.get((tensor, processor), []):
            if box_within(box, tile.box):
                return tile
        tile_at_home = self.home[tensor, processor]
        assert box_within(box, tile_at_home.box), "a processor reads what it does not have"
        return tile_at_home

    def bring(self, step: Bring) -> None:
        arrived: dict[Coordinates, _Tile] = {}
        for processor, box in step.pieces.items():
            tile = _Tile(box, np.full(tuple(map(len, box)), np.nan), step.turn)
            held = self.home.get((step.tensor, processor))
            if held is not None and not step.passed_on:
                self._keep_own(tile, held)
            arrived[processor] = tile
        for move in step.moves:
            arrived[move.target].write(move.box, self._sent(step, move))
        for processor, tile in arrived.items():
            self.hold(step.tensor, processor, tile)

    def _keep_own(self, tile: _Tile, held: _Tile) -> None:
        common = tuple(np.intersect1d(a, b) for a, b in zip(tile.box, held.box, strict=True))
        if all(len(indices) for indices in common):
            tile.write(common, held.read(common))

    def _sent(self, step: Bring, move: Move) -> NDArray[np.float64]:
        if not step.passed_on:
            return self.home[step.tensor, move.source].read(move.box)
        key = box_key(move.box)
        tiles = self.old.get((step.tensor, move.source), [])
        return next(tile for tile in tiles if box_key(tile.box) == key).read(move.box)

    def forget_passed(self) -> None:
        """Tiles of the turn before are given up once everything of this turn has been sent."""
        for (_, processor), tiles in self.old.items():
            self.drop(processor, tiles)
        self.old.clear()

    def start(self, step: Start) -> None:
        for processor, box in step.pieces.items():
            zeros = np.zeros(tuple(map(len, box)))
            self.hold(self.result_name, processor, _Tile(box, zeros, step.turn))

    def compute(self, step: Compute) -> None:
        statement = self.placed.schedule.statement
        for processor in grid_points(self.placed.grid):
            at = {**dict(step.turn), **self.placed.at_processor(processor)}
            values = []
            for access in statement.operands:
                box = self.placed.needs(access.tensor, at)
                values.append(self.tile(access.tensor, processor, box).read(box))
            product = np.einsum(statement.einsum_text(), *values)
            box = self.placed.needs(self.result_name, at)
            self.tile(self.result_name, processor, box).add(box, product)

    def send(self, step: Send) -> None:
        name = self.result_name
        for move in step.moves:
            tile = self.tile(name, move.source, move.box)
            self.home[name, move.target].add(move.box, tile.read(move.box))
        for processor, box in step.kept:
            tile = self.tile(name, processor, box)
            if tile is not self.home[name, processor]:
                self.home[name, processor].add(box, tile.read(box))

    def release(self, step: Release) -> None:
        for tensor in step.tensors:
            passes = tensor != self.result_name and self.placed.passed_on(tensor) is not None
            for processor in grid_points(self.placed.grid):
                key = (tensor, processor)
                tiles = self.brought.pop(key, [])
                if passes and not self._is_last(tensor, step.turn):
                    self.old[key] = tiles
                else:
                    self.drop(processor, tiles)

    def _is_last(self, tensor: str, turn: Turn) -> bool:
        depth = self.placed.schedule.depth(tensor)
        loop = self.placed.schedule.time_loops[depth - 1]
        return dict(turn)[loop.variable] == loop.extent - 1

    def copy(self, moves: tuple[Move, ...]) -> None:
        name = self.result_name
        for move in moves:
            data = self.home[name, move.source].read(move.box)
            self.home[name, move.target].write(move.box, data)

    def result(self) -> NDArray[np.float64]:
        name = self.result_name
        value = np.full(self.placed.shape(name), np.nan)
        for processor, box in self.placed.held[name].items():
            if box is not None:
                value[np.ix_(*box) if box else ()] = self.home[name, processor].data
        return value
