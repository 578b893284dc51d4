"""How much longer planning takes than at an earlier commit, both measured side by side.

    python experiments/planning_growth.py REVISION [--rounds 3] [--points 2]

Checks the revision out beside this tree, plans the points of `planning_speed.py` in both in turns,
each in a process of its own, and compares the shortest runs. Writes
`experiments/results/planning_growth.md`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from experiments.planning_speed import POINTS, found_by, run_point, stages_text
from experiments.results_table import markdown_table, write_page

ROOT = Path(__file__).resolve().parent.parent

Found = dict[str, Any]


@contextmanager
def tree_at(revision: str) -> Iterator[Path]:
    """A checkout of a revision, as long as it is used."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", "-q", str(tree), revision], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def plan_in(tree: Path, point: Sequence[Any]) -> Found:
    """Plan one point with the code of a tree."""
    done = run_point(point, tree)
    done.check_returncode()
    return found_by(done)


def compared(before: Path, point: Sequence[Any], rounds: int) -> tuple[Found, Found]:
    """The shortest run of each tree, taken in turns."""
    runs: dict[Path, list[Found]] = {before: [], ROOT: []}
    for _ in range(rounds):
        for tree, found in runs.items():
            found.append(plan_in(tree, point))
    earlier, now = (min(found, key=lambda run: run["wall"]) for found in runs.values())
    return earlier, now


def row_of(name: str, mesh: str, before: Found, now: Found) -> dict[str, str]:
    """A row of the table."""
    return {
        "program": name,
        "mesh": mesh,
        "before s": f"{before['wall']:.2f}",
        "now s": f"{now['wall']:.2f}",
        "ratio": f"{now['wall'] / before['wall']:.2f}",
        "gap before %": f"{100 * before['gap']:.2f}",
        "gap now %": f"{100 * now['gap']:.2f}",
        "stages before, s": stages_text(before),
        "stages now, s": stages_text(now),
    }


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("revision", help="the earlier commit")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--points", type=int, default=2, help="how many, of those in planning_speed"
    )
    options = parser.parse_args()
    rows = []
    with tree_at(options.revision) as before:
        plan_in(before, POINTS[0][1:])  # compiles that tree's kernels
        plan_in(ROOT, POINTS[0][1:])
        for name, *point in POINTS[: options.points]:
            earlier, now = compared(before, point, options.rounds)
            rows.append(row_of(name, str(point[2]), earlier, now))
            print(rows[-1], flush=True)
    text = f"Now beside {options.revision}, the shortest of {options.rounds} runs in turns.\n\n"
    page = write_page(
        "planning_growth", "Planning time beside an earlier commit", text + markdown_table(rows)
    )
    print(f"wrote {page}")


if __name__ == "__main__":
    main()
