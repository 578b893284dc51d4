"""Writes the pictures of distributed matrix products in `docs/explanation/pictures`.

    python docs/draw_schedules.py

A test holds the files to what this would write.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from autoshard.loops import (
    all_gather_matmul,
    cannon,
    draw_maps_svg,
    draw_steps,
    parse_distribution,
    solomonik,
    summa,
)

FOLDER = Path(__file__).resolve().parent / "explanation" / "pictures"


def pictures() -> dict[str, str]:
    """File name and content of each."""
    return {
        "copied-matrix.svg": draw_maps_svg(parse_distribution("T xy -> xy* M"), (4, 4), (2, 2, 2)),
        "matrix-on-a-face.svg": draw_maps_svg(
            parse_distribution("T xy -> xy0 M"), (4, 4), (2, 2, 2)
        ),
        "summa.svg": draw_steps(summa(3, 3, 3, (3, 3), panel=1, is_contiguous=True)),
        "cannon.svg": draw_steps(cannon(3, 3, 3, (3, 3))),
        "solomonik.svg": draw_steps(solomonik(4, 4, 4, (4, 4, 2)), columns=1),
        "all-gather-matmul.svg": draw_steps(all_gather_matmul(4, 4, 4, 4), columns=2),
    }


def main() -> None:
    """Write them all."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in pictures().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
