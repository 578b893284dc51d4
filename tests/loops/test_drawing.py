"""Pictures: well-formed, complete, and as they stand in the documentation."""

from __future__ import annotations

import runpy
from pathlib import Path
from xml.etree import ElementTree

import pytest

from autoshard.loops import (
    Placed,
    all_gather_matmul,
    cannon,
    draw_maps_svg,
    draw_steps,
    parse_distribution,
    solomonik,
)
from autoshard.loops.step_drawing import frames

ROOT = Path(__file__).parents[2]
SVG = "{http://www.w3.org/2000/svg}"
PICTURES: dict[str, str] = runpy.run_path(str(ROOT / "docs" / "draw_schedules.py"))["pictures"]()


@pytest.mark.parametrize(
    "made",
    [cannon(3, 3, 3, (3, 3)), solomonik(4, 4, 4, (4, 4, 2)), all_gather_matmul(4, 4, 4, 4)],
    ids=["cannon", "solomonik", "ring"],
)
def test_every_processor_has_a_cell_in_every_frame_and_every_message_an_arrow(
    made: Placed,
) -> None:
    root = ElementTree.fromstring(draw_steps(made))
    shown = frames(made)
    cells = [box for box in root.iter(f"{SVG}rect") if box.get("width") == "60"]
    assert len(cells) == len(shown) * made.num_processors
    arrows = [path for path in root.iter(f"{SVG}path") if path.get("marker-end")]
    messages = {
        (number, tensor, move.source, move.target)
        for number, frame in enumerate(shown)
        for tensor, move in frame.moves
    }
    legend = 3
    assert len(arrows) == len(messages) + legend


def test_a_cell_names_the_pieces_that_cannon_uses_there() -> None:
    root = ElementTree.fromstring(draw_steps(cannon(3, 3, 3, (3, 3))))
    words = [text.text for text in root.iter(f"{SVG}text")]
    start = words.index("kos = 1: 2 words each")
    # Processor (0, 0) is at step 1 of its rotation, and so at block 1 of k.
    assert words[start + 1 : start + 3] == ["B 0,1", "C 1,0"]


def test_maps_show_every_point_and_every_processor() -> None:
    drawn = draw_maps_svg(parse_distribution("T xy -> xy0 M"), (4, 4), (2, 2, 2))
    root = ElementTree.fromstring(drawn)
    boxes = [box.get("fill") for box in root.iter(f"{SVG}rect") if box.get("stroke")]
    assert len(boxes) == 4 * 4 + 2 * 2 * 2
    assert boxes.count("#fff") == 4


@pytest.mark.parametrize("name", PICTURES)
def test_the_pictures_of_the_documentation_are_current(name: str) -> None:
    found = ROOT / "docs" / "explanation" / "pictures" / name
    assert found.read_text(encoding="utf-8") == PICTURES[name], (
        "run `python docs/draw_schedules.py`"
    )
