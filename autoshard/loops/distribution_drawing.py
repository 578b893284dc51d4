"""The two maps of a distribution as text and as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence

from autoshard.loops.distribution import Distribution, Named
from autoshard.loops.distribution_text import format_distribution
from autoshard.loops.holdings import (
    Coordinates,
    colour_dims,
    colours_to_processors,
    grid_points,
    points_to_colours,
)
from autoshard.loops.svg import Picture, tint

_MARKS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


def draw_maps(distribution: Distribution, shape: Sequence[int], grid: Sequence[int]) -> str:
    """Tensor and machine side by side: every point and every processor with its colour's letter.

    The last two dimensions make a picture, the ones before it a title above each. A processor off
    a fixed face shows `.`.

    Raises:
        ShardingError: Shape, machine and distribution do not fit.
    """
    shape, grid = tuple(shape), tuple(grid)
    points = points_to_colours(distribution, shape, grid)
    by_colour = colours_to_processors(distribution, grid)
    marks = {colour: _mark(index) for index, colour in enumerate(sorted(by_colour))}
    width = max(map(len, marks.values()), default=1)
    tensor = {point: marks[colour] for point, colour in points.items()}
    machine = dict.fromkeys(grid_points(grid), ".")
    for colour, processors in by_colour.items():
        machine |= dict.fromkeys(processors, marks[colour])
    left = _pictures(distribution.tensor, shape, tensor, width)
    right = _pictures(distribution.machine, grid, machine, width)
    column = max(map(len, left)) + 3
    rows = max(len(left), len(right))
    lines = [format_distribution(distribution), ""]
    lines += [
        f"{_row(left, index):<{column}}{_row(right, index)}".rstrip() for index in range(rows)
    ]
    lines += ["", *_legend(distribution, marks)]
    return "\n".join(lines)


def _row(lines: Sequence[str], index: int) -> str:
    return lines[index] if index < len(lines) else ""


def _mark(index: int) -> str:
    """`a`, `b`, and so on; two characters and more once they run out."""
    text = _MARKS[index % len(_MARKS)]
    while index >= len(_MARKS):
        index = index // len(_MARKS) - 1
        text = _MARKS[index % len(_MARKS)] + text
    return text


def _pictures(
    name: str, shape: Coordinates, marks: dict[Coordinates, str], width: int
) -> list[str]:
    """One picture for each value of all dimensions but the last two."""
    if not shape:
        return [name, f"  {marks[()]}"]
    rows = shape[-2] if len(shape) > 1 else 1
    lines: list[str] = []
    for outer in grid_points(shape[:-2]):
        at = "".join(f"{value}," for value in outer)
        lines.append(f"{name}[{at}:,:]" if len(shape) > 1 else f"{name}[:]")
        for row in range(rows):
            inner = (row,) if len(shape) > 1 else ()
            cells = (marks[(*outer, *inner, column)] for column in range(shape[-1]))
            lines.append("  " + " ".join(f"{cell:<{width}}" for cell in cells).rstrip())
    return lines


def _legend(distribution: Distribution, marks: dict[Coordinates, str]) -> list[str]:
    names = []
    for place in colour_dims(distribution):
        entry = distribution.entry(place)
        assert isinstance(entry, Named)
        names.append(entry.name)
    if not names:
        return ["one colour"]
    return [
        "colour "
        + ", ".join(
            f"{mark} = ({', '.join(f'{n} {v}' for n, v in zip(names, colour, strict=True))})"
            for colour, mark in marks.items()
        )
    ]


def draw_maps_svg(distribution: Distribution, shape: Sequence[int], grid: Sequence[int]) -> str:
    """Tensor and machine side by side as SVG, each point and processor in its colour.

    Raises:
        ShardingError: Shape, machine and distribution do not fit.
    """
    shape, grid = tuple(shape), tuple(grid)
    points = points_to_colours(distribution, shape, grid)
    by_colour = colours_to_processors(distribution, grid)
    order = sorted(by_colour)
    fills = {colour: tint(index, len(order)) for index, colour in enumerate(order)}
    marks = {colour: _mark(index) for index, colour in enumerate(order)}
    tensor = {point: (fills[colour], marks[colour]) for point, colour in points.items()}
    machine = dict.fromkeys(grid_points(grid), ("#fff", ""))
    for colour, processors in by_colour.items():
        machine |= dict.fromkeys(processors, (fills[colour], marks[colour]))
    size = 26.0
    left, right = _extent(shape, size), _extent(grid, size)
    picture = Picture(3 * size + left[0] + right[0], 46 + max(left[1], right[1]) + 12)
    picture.word(size, 20, format_distribution(distribution), size=14, anchor="start")
    _draw_cells(picture, shape, tensor, size, (size, 46.0))
    _draw_cells(picture, grid, machine, size, (2 * size + left[0], 46.0))
    return picture.text()


def _pages(shape: Coordinates) -> tuple[int, int, int]:
    """Pictures side by side, rows and columns of each."""
    rows = shape[-2] if len(shape) > 1 else 1
    columns = shape[-1] if shape else 1
    return math.prod(shape[:-2]), rows, columns


def _extent(shape: Coordinates, size: float) -> tuple[float, float]:
    pages, rows, columns = _pages(shape)
    return pages * columns * size + (pages - 1) * size / 2, rows * size


def _draw_cells(
    picture: Picture,
    shape: Coordinates,
    cells: dict[Coordinates, tuple[str, str]],
    size: float,
    corner: tuple[float, float],
) -> None:
    _, rows, columns = _pages(shape)
    for index, point in enumerate(grid_points(shape)):
        page, inside = divmod(index, rows * columns)
        row, column = divmod(inside, columns)
        x = corner[0] + page * (columns + 0.5) * size + column * size
        y = corner[1] + row * size
        if inside == 0 and len(shape) > 2:
            at = ",".join(map(str, point[:-2]))
            picture.word(x, y - 4, f"[{at},:,:]", size=9, anchor="start")
        fill, mark = cells[point]
        picture.box(x, y, size, size, fill)
        picture.word(x + size / 2, y + size * 0.65, mark)
