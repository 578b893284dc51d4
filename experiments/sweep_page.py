"""Tables and pictures of finished sweeps, as they lie under `experiments/results`.

    python experiments/sweep_page.py FOLDER...

Each folder is that of a sweep, such as `budgets`, made by

    python experiments/run.py -m +recipe=budgets folder=budgets

Copies its table to `sweeps/NAME.csv`, draws its pictures beside it, and writes `sweeps.md`.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from experiments.plots import draw_table
from experiments.results_table import RESULTS, markdown_table, write_page
from experiments.sweeps.table import read_table, shown_row

PICTURE = {
    "budgets": "cost_against_budget",
    "mesh_shapes": "mesh_shapes",
    "solve_time": "solve_time",
}
"""The picture that a recipe is for."""


def section(folder: Path) -> str:
    """Keep a sweep's table and picture; what the page says of them."""
    name = folder.name
    kept = RESULTS / "sweeps"
    kept.mkdir(exist_ok=True)
    shutil.copyfile(folder / "table.csv", kept / f"{name}.csv")
    rows = read_table(folder / "table.csv")
    commits = ", ".join(sorted({row["commit"] for row in rows}))
    picture = draw_table(rows, PICTURE[name], kept / f"{name}.svg")
    text = f"## {name}\n\n{len(rows)} points at {commits}; [the table](sweeps/{name}.csv).\n\n"
    if picture:
        text += f"![{PICTURE[name]}](sweeps/{name}.svg)\n\n"
    return text + markdown_table([shown_row(row) for row in rows])


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folders", type=Path, nargs="+", help="of sweeps, named after recipes")
    options = parser.parse_args()
    unknown = [folder.name for folder in options.folders if folder.name not in PICTURE]
    if unknown:
        parser.error(f"no recipe with a picture: {', '.join(unknown)}")
    text = (
        "Step times are predictions. Planning was timed on a machine that did other work"
        " meanwhile; `planning_speed.md` has the times of a quiet one.\n\n"
        + "\n".join(map(section, options.folders))
    )
    print(f"wrote {write_page('sweeps', 'Sweeps', text)}")


if __name__ == "__main__":
    main()
