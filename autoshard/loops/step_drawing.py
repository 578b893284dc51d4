"""Pictures of a schedule's steps: what each processor uses in a turn, and what is sent for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from autoshard.loops.holdings import Coordinates, grid_points
from autoshard.loops.placed import Placed
from autoshard.loops.svg import Picture, tint
from autoshard.loops.unroll import Bring, Compute, Copy, Move, Send, Turn, unroll

CELL = 60
GAP = 26
TOP = 46
COLOURS = ("#2a7d2a", "#1f5fbf", "#c2570c", "#7a3fa0")
"""Of arrows, in the order of the statement's tensors."""

ANCHORS = ((0.4, 0.9), (0.45, 0.72), (0.85, 0.5), (0.7, 0.6))
"""Where arrows of each tensor begin and end in a cell, clear of its text and of one another."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One turn, or the sums going home.

    Args:
        title: Which.
        turn: The loops that are fixed; None if nothing is computed.
        moves: Tensor and what is sent for it.
    """

    title: str
    turn: Turn | None
    moves: tuple[tuple[str, Move], ...]


def frames(placed: Placed) -> tuple[Frame, ...]:
    """The turns of a schedule, each with what is sent before it, and what is sent at the end."""
    result = placed.schedule.statement.result.tensor
    found: list[Frame] = []
    waiting: list[tuple[str, Move]] = []
    for step in unroll(placed).steps:
        match step:
            case Bring():
                waiting += [(step.tensor, move) for move in step.moves]
            case Compute():
                at = ", ".join(f"{name} = {value}" for name, value in step.turn) or "all at once"
                found.append(Frame(at, step.turn, tuple(waiting)))
                waiting = []
            case Send() | Copy():
                waiting += [(result, move) for move in step.moves]
    if waiting:
        found.append(Frame("sums go home", None, tuple(waiting)))
    return tuple(found)


def draw_steps(placed: Placed, *, columns: int = 3) -> str:
    """The steps of a schedule on a grid of one, two or three dimensions, as SVG.

    Rows of processors run down the first dimension of the grid, columns along the second, and the
    third stands side by side. A cell names the pieces its processor uses in that turn, numbered
    along each variable, and is tinted by its piece of the variable that changes from turn to turn.
    Arrows show what is sent; between layers they are faint.

    Args:
        placed: The schedule and the homes.
        columns: Frames side by side.
    """
    shown = frames(placed)
    grid = (*placed.grid, *(1,) * (3 - len(placed.grid)))
    if len(placed.grid) == 1:
        grid = (1, placed.grid[0], 1)
    wide = (grid[1] * CELL) * grid[2] + 12 * (grid[2] - 1)
    tall = grid[0] * CELL
    columns = min(columns, len(shown))
    rows = -(-len(shown) // columns)
    picture = Picture(GAP + columns * (wide + GAP), 22 + rows * (tall + TOP))
    numbers = _piece_numbers(placed, shown)
    tinted = _tinted(placed, shown)
    for index, frame in enumerate(shown):
        left = GAP + (index % columns) * (wide + GAP)
        top = 32 + (index // columns) * (tall + TOP)
        words = sum(move.words for _, move in frame.moves) / placed.num_processors
        picture.word(
            left, top - 10, f"{frame.title}: {words:.3g} words each", size=12, anchor="start"
        )
        places = {p: _place(p, grid, left, top) for p in grid_points(placed.grid)}
        for processor, (x, y) in places.items():
            _draw_cell(picture, placed, numbers, tinted, frame, processor, x, y)
        _draw_arrows(picture, placed, frame.moves, places)
    _draw_legend(picture, placed)
    return picture.text()


def _place(
    processor: Coordinates, grid: tuple[int, ...], left: float, top: float
) -> tuple[float, float]:
    """The upper left corner of a processor's cell."""
    if len(processor) == 1:
        return left + processor[0] * CELL, top
    layer = processor[2] if len(processor) > 2 else 0
    return left + layer * (grid[1] * CELL + 12) + processor[1] * CELL, top + processor[0] * CELL


Numbers = dict[str, dict[bytes, int]]


def _piece_numbers(placed: Placed, shown: Sequence[Frame]) -> Numbers:
    """For each variable, the sets of values that occur in turns, numbered from the smallest."""
    found: dict[str, dict[bytes, int]] = {name: {} for name in placed.schedule.sizes}
    for name, keys in found.items():
        sets = {
            values.tobytes(): tuple(values)
            for frame in shown
            if frame.turn is not None
            for processor in grid_points(placed.grid)
            for values in [
                placed.values(name, {**dict(frame.turn), **placed.at_processor(processor)})
            ]
        }
        for number, key in enumerate(sorted(sets, key=lambda key: sets[key])):
            keys[key] = number
    return found


def _tinted(placed: Placed, shown: Sequence[Frame]) -> str:
    """The variable to tint cells by: the first that changes from turn to turn."""
    first = placed.at_processor((0,) * len(placed.grid))
    turns = [dict(frame.turn) for frame in shown if frame.turn is not None]
    names = placed.schedule.statement.variables
    for name in names:
        if len({placed.values(name, {**turn, **first}).tobytes() for turn in turns}) > 1:
            return name
    return names[-1]


def _draw_cell(
    picture: Picture,
    placed: Placed,
    numbers: Numbers,
    tinted: str,
    frame: Frame,
    processor: Coordinates,
    x: float,
    y: float,
) -> None:
    statement = placed.schedule.statement
    if frame.turn is None:
        picture.box(x, y, CELL, CELL, "#f2f2f2")
        return
    at = {**dict(frame.turn), **placed.at_processor(processor)}

    def number(name: str) -> int:
        return numbers[name][np.asarray(placed.values(name, at)).tobytes()]

    picture.box(x, y, CELL, CELL, tint(number(tinted), len(numbers[tinted])))
    for line, access in enumerate(statement.operands):
        name = access.tensor + " " + ",".join(str(number(index)) for index in access.indices)
        picture.word(x + 5, y + 16 + 14 * line, name, anchor="start")


def _draw_arrows(
    picture: Picture,
    placed: Placed,
    moves: Iterable[tuple[str, Move]],
    places: dict[Coordinates, tuple[float, float]],
) -> None:
    tensors = [access.tensor for access in placed.schedule.statement.accesses]
    drawn = set()
    for tensor, move in moves:
        key = (tensor, move.source, move.target)
        if key in drawn:
            continue
        drawn.add(key)
        colour = COLOURS[tensors.index(tensor) % len(COLOURS)]
        anchor = ANCHORS[tensors.index(tensor) % len(ANCHORS)]
        start, end = _ends(places[move.source], places[move.target], anchor)
        picture.arrow(start, end, colour, 0.1, is_faint=move.source[2:] != move.target[2:])


def _ends(
    start: tuple[float, float], end: tuple[float, float], anchor: tuple[float, float]
) -> tuple[tuple[float, float], tuple[float, float]]:
    """From anchor to anchor of two cells, a little short of both."""
    dx, dy = end[0] - start[0], end[1] - start[1]
    short = 12 / max((dx * dx + dy * dy) ** 0.5, 1)
    x, y = CELL * anchor[0], CELL * anchor[1]
    return (
        (start[0] + x + dx * short, start[1] + y + dy * short),
        (end[0] + x - dx * short, end[1] + y - dy * short),
    )


def _draw_legend(picture: Picture, placed: Placed) -> None:
    x = float(GAP)
    y = picture.height - 10
    for place, access in enumerate(placed.schedule.statement.accesses):
        picture.arrow((x, y - 4), (x + 22, y - 4), COLOURS[place % len(COLOURS)], 0)
        picture.word(x + 28, y, str(access), anchor="start")
        x += 38 + 8 * len(str(access))
