"""Draws the screens of `docs/how-to/review-a-plan.md`: a plan on the page and in the terminal.

The plan is of a Haiku ResNet, shown as this checkout does it, or as an earlier commit did:

    python docs/draw_review.py
    python docs/draw_review.py 862066e  # before plans were made for review

Needs a Chromium, as `docs/draw_page.py` does, and Haiku.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from experiments.programs.models import haiku_resnet  # noqa: E402  (of this checkout)

sys.path.remove(str(ROOT))  # what is planned with may be of another one
from rich.console import Console  # noqa: E402
from rich.terminal_theme import DIMMED_MONOKAI  # noqa: E402
from rich.text import Text  # noqa: E402

import autoshard  # noqa: E402

PICTURES = ROOT / "docs" / "explanation" / "pictures"
WIDTH, HEAD, LINES = 100, 5, 60
FOLDER = "DRAW_REVIEW_BEFORE"
"""Set where an earlier commit draws."""


def main() -> None:
    if len(sys.argv) == 1:
        draw("before" if FOLDER in os.environ else "now")
        return
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "worktree", "add", "--detach", folder, sys.argv[1]], check=True)
        try:
            paths = os.pathsep.join([folder, str(ROOT)])
            environment = {**os.environ, "PYTHONPATH": paths, FOLDER: folder}
            subprocess.run([sys.executable, __file__], env=environment, check=True)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", folder], check=True)


def draw(when: str) -> None:
    from docs.draw_page import draw_page

    program = haiku_resnet()
    plan = autoshard.optimize(
        program.fn,
        *program.args,
        mesh="data=2,model=4",
        hardware="cpu-host",
        donate_argnums=program.donate_argnums,
    )
    print(f"{when}: {len(plan.constraints)} constraints")
    draw_page(plan, PICTURES / f"review-page-{when}.png")
    lines = str(plan.report(width=WIDTH)).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("Collectives"))
    shown = [*lines[:HEAD], "...", "", *lines[start : start + LINES]]
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        console = Console(record=True, width=WIDTH, file=nowhere)
        console.print(Text("\n".join([*shown, "..."])))
        svg = console.export_svg(title=f"autoshard report, {when}", theme=DIMMED_MONOKAI)
    svg = re.sub(r"@font-face \{.*?\}\n", "", svg, flags=re.DOTALL)  # fetched from elsewhere
    (PICTURES / f"review-report-{when}.svg").write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
