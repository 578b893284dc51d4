"""A sweep of 24 points, killed in the middle and begun again, beside the same sweep undisturbed.

    python experiments/killed_sweep.py [--folder killed_sweep] [--kill-after 10] [--quick]

Writes `experiments/results/sweep.csv`, the table of the killed sweep, and `sweep.md` about it. It
may itself be begun again: both sweeps go on where they ended.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from experiments.results_table import RESULTS, markdown_table, write_page
from experiments.sweeps.table import ASKED, FOUND, read_table, shown_row

RECIPE = "scanned"


def start(folder: Path) -> subprocess.Popen[str]:
    """Start the sweep."""
    run = Path(__file__).with_name("run.py")
    return subprocess.Popen(
        [sys.executable, str(run), "-m", f"+recipe={RECIPE}", f"folder={folder}"], text=True
    )


def finished(folder: Path) -> list[Path]:
    """Files of the points that are finished."""
    return sorted((folder / "points").glob("*.json"))


def kill_in_the_middle(folder: Path, kill_after: int) -> int:
    """Run the sweep until so many points are finished, then kill it; how many it had by then.

    A sweep that was killed by this function before is left as it is.
    """
    note = folder / "killed_after"
    if not note.exists():
        with start(folder) as process:
            while len(finished(folder)) < kill_after and process.poll() is None:
                time.sleep(0.1)
            time.sleep(1.0)  # into the next point
            os.kill(process.pid, signal.SIGKILL)
        note.write_text(f"{len(finished(folder))}\n")
    return int(note.read_text())


def what_was_found(folder: Path) -> dict[str, dict[str, str]]:
    """By point, the columns that are the same however often it is planned."""
    return {
        row["id"]: {name: row[name] for name in (*ASKED, *FOUND)}
        for row in read_table(folder / "table.csv")
    }


def main() -> None:
    """Run both sweeps, compare their tables, write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=Path("killed_sweep"))
    parser.add_argument("--kill-after", type=int, default=10, help="points finished by then")
    parser.add_argument(
        "--quick", action="store_true", help="compare with what the undisturbed sweep has so far"
    )
    options = parser.parse_args()
    killed, whole = options.folder / "killed", options.folder / "whole"
    had = kill_in_the_middle(killed, options.kill_after)
    for folder in (killed,) if options.quick else (killed, whole):
        with start(folder) as process:
            if process.wait():
                raise SystemExit(f"the sweep in {folder} failed")
    mine, others = what_was_found(killed), what_was_found(whole)
    different = [
        (identity, name)
        for identity, other in others.items()
        for name in other
        if mine[identity][name] != other[name]
    ]
    rows = read_table(killed / "table.csv")
    shutil.copyfile(killed / "table.csv", RESULTS / "sweep.csv")
    verdict = (
        f"In all {len(FOUND)} columns that say what was found, not how long it took, both have the"
        " same."
        if not different
        else f"They differ in {len(different)} places: {different}."
    )
    text = (
        f"The sweep `+recipe={RECIPE}`, killed with SIGKILL when {had} of its {len(rows)} points"
        f" were finished and another one was in flight, then begun again. {len(others)} of the"
        f" points were planned in another folder, undisturbed, too. {verdict}\n\n"
        "`sweep.csv` beside this page is the whole table of the killed sweep; step times are"
        " predictions. Times of planning are those of a machine that did other work meanwhile;"
        " `planning_speed.md` has those of a quiet one.\n\n"
        + markdown_table([shown_row(row) for row in rows])
    )
    print(f"wrote {write_page('sweep', 'A sweep, killed and begun again', text)}")
    if different:
        raise SystemExit(verdict)


if __name__ == "__main__":
    main()
